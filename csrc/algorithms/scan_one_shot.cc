// one_shot scan: every rank publishes its values, and combines those of ranks 0 to its own, in this order.
//
// Through the header lines, or chunk by chunk through the bounce buffers. One synchronisation; rank r reads r S bytes:
// the choice for short arrays on one host.
//
// Source: the linear scan of MPI libraries, with all values read at once as in the one-shot all-reduce of MSCCL++.

#include "schedule/prefix.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& topology) {
  return topology.all_mapped() ? "" : "it needs memory that all ranks have mapped";
}

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  return Prefix::cost_of_reading(problem, topology, model);
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  return Prefix(problem, topology, limits).by_reading();
}

const RegisterAlgorithm registration({"one_shot", Collective::kScan,
                                      "Everyone publishes, and adds up the ranks below it.",
                                      "the linear scan of MPI libraries", Determinism::kCanonical, unsupported, cost,
                                      build});

}  // namespace
}  // namespace collectives
