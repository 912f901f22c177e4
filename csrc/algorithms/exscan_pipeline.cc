// pipeline exscan: what rank r - 1 passes on is the result of rank r, which passes it on combined with its own values.
//
// As the pipeline scan. By messages a rank holds a segment of both, since in place its result overwrites its values.
//
// Source: Sanders and Träff, "Parallel prefix (scan) algorithms for MPI", 2006.

#include "schedule/prefix.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  return Prefix::cost_of_pipeline(problem, topology, model);
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  return Prefix(problem, topology, limits).by_pipeline();
}

const RegisterAlgorithm registration(
    {"pipeline", Collective::kExscan,
     "Each rank keeps what comes from the rank below, and passes it on with its values added.",
     "Sanders and Träff 2006", Determinism::kCanonical, unsupported, cost, build});

}  // namespace
}  // namespace collectives
