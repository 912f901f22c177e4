// recursive_doubling exscan: as the scan of this name, with a second sum at each rank that leaves its own values out.
//
// Source: Hillis and Steele, "Data parallel algorithms", 1986; MPICH has the second sum for MPI_Exscan.

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

const RegisterAlgorithm registration({"recursive_doubling", Collective::kExscan,
                                      "In round k each rank passes what it has on to the rank 2^k above.",
                                      "Hillis and Steele 1986", Determinism::kFixed, unsupported, cost, build});

}  // namespace
}  // namespace collectives
