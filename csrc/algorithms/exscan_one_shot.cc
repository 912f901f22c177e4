// one_shot exscan: every rank publishes its values, and combines those of the ranks below it, from rank 0 on.
//
// As the one_shot scan, without the own values.
//
// Source: the linear exscan of MPI libraries, with all values read at once as in the one-shot all-reduce of MSCCL++.

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

const RegisterAlgorithm registration({"one_shot", Collective::kExscan,
                                      "Everyone publishes, and adds up the ranks below it.",
                                      "the linear exscan of MPI libraries", Determinism::kCanonical, unsupported, cost,
                                      build});

}  // namespace
}  // namespace collectives
