// recursive_doubling scan: in round k, rank r passes what it has on to rank r + 2^k, and adds what comes from r - 2^k.
//
// After round k a rank has the sum of its own values and of those of the 2^(k+1) - 1 ranks below it. log2(n) rounds of
// S bytes: the choice for short arrays between hosts. Where there is no rank so far above, a token goes around to the
// first ranks, so that all learn that all have entered.
//
// Source: Hillis and Steele, "Data parallel algorithms", 1986; the tokens are those of the dissemination barrier
// (Hensgen, Finkel and Manber 1988).

#include "schedule/prefix.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& problem, const Topology& /*topology*/) {
  return Prefix::too_long_to_double(problem);
}

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  return Prefix::cost_of_doubling(problem, topology, model);
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  return Prefix(problem, topology, limits).by_doubling();
}

const RegisterAlgorithm registration({"recursive_doubling", Collective::kScan,
                                      "In round k each rank passes what it has on to the rank 2^k above.",
                                      "Hillis and Steele 1986", Determinism::kFixed, unsupported, cost, build});

}  // namespace
}  // namespace collectives
