// double_tree all-reduce: up two binary trees and down again, half of the data through each.
//
// Every host is an inner node of one tree and a leaf of the other, so all ports have equal work: S bytes of sums and S
// of results leave each host and enter it, after 2 log2(h) messages one after the other, for any number of hosts. Data
// go in chunks, and results come down while other chunks go up. The trees and the rounds are those of
// schedule/double_tree.h. The choice for buffers of middle length where hosts are many and no power of two.
//
// A result proves that the sums have arrived which it overwrites.
//
// Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.

#include "schedule/double_tree.h"
#include "schedule/placement.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& topology) { return needs_hosts(topology); }

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  return problem.count == 0 ? build_schedule("one_shot", problem, topology, limits)
                            : double_tree(problem, topology, limits);
}

const RegisterAlgorithm registration({"double_tree", Collective::kAllReduce,
                                      "Up two binary trees of hosts and down again, half of the data through each.",
                                      "Sanders, Speck and Traeff 2009", Determinism::kFixed, unsupported,
                                      cost_of_double_tree, build});

}  // namespace
}  // namespace collectives
