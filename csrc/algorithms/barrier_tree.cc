// tree barrier: tokens up a binomial tree, then down again. It is the tree broadcast of no bytes from rank 0.
//
// Source: the combining-tree barrier (Yew, Tzeng and Lawrie 1987).

#include <bit>

#include "schedule/algorithm.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

double cost(const Problem& /*problem*/, const Topology& topology, const CostModel& model) {
  return 2.0 * std::bit_width(static_cast<unsigned>(topology.size - 1)) * model.slowest(topology).latency_us;
}

Schedule build(const Problem& /*problem*/, const Topology& topology, const Limits& limits) {
  Problem nothing;
  nothing.collective = Collective::kBroadcast;
  return build_schedule("tree", nothing, topology, limits);
}

const RegisterAlgorithm registration({"tree", Collective::kBarrier, "Tokens up a binomial tree and down again.",
                                      "Yew, Tzeng and Lawrie 1987", Determinism::kCanonical, unsupported, cost, build});

}  // namespace
}  // namespace collectives
