// pipeline scan: rank r combines what rank r - 1 passes on with its own values, which is its result, and passes it on.
//
// Chunk by chunk, so that all ranks work at the same time: S bytes over each link between neighbours, after n - 1 steps
// that fill the pipeline. Through bounce buffers on one host, else by messages. At the end of its first chunk the last
// rank tells all others that all have entered.
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

const RegisterAlgorithm registration({"pipeline", Collective::kScan,
                                      "Each rank adds its values to what comes from the rank below, and passes it on.",
                                      "Sanders and Träff 2006", Determinism::kCanonical, unsupported, cost, build});

}  // namespace
}  // namespace collectives
