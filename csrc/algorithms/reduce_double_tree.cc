// double_tree reduce: up two binary trees, half of the data through each.
//
// Every host but the root's is an inner node of one tree and a leaf of the other, and the root reduces what comes from
// the tops of both: S bytes leave and enter each port, after log2(h) messages one after the other, in chunks. At the
// end tokens go down one tree, since no rank returns before all have entered. The trees and the rounds are those of
// schedule/double_tree.h.
//
// Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.

#include "schedule/double_tree.h"
#include "schedule/placement.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& topology) { return needs_hosts(topology); }

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  return problem.count == 0 ? build_schedule("hierarchical", problem, topology, limits)
                            : double_tree(problem, topology, limits);
}

const RegisterAlgorithm registration({"double_tree", Collective::kReduce,
                                      "Up two binary trees of hosts, half of the data through each.",
                                      "Sanders, Speck and Traeff 2009", Determinism::kFixed, unsupported,
                                      cost_of_double_tree, build});

}  // namespace
}  // namespace collectives
