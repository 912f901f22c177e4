// hierarchical broadcast: down a binomial tree of hosts, then to the ranks of each host.
//
// The leader of a host is its lowest rank, and of the root's host the root. First tokens go up to the root (no rank
// returns before all have entered), then the data go down, segment by segment: log2(h) messages between hosts come one
// after the other, S bytes each, and one more inside a host.
//
// Source: the two-level and binomial broadcasts of MPI libraries (Thakur, Rabenseifner and Gropp 2005).

#include <bit>
#include <vector>

#include "schedule/placement.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& topology) { return needs_hosts(topology); }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const Placement placement(topology);
  const auto bytes = static_cast<double>(problem.bytes());
  const int depth = std::bit_width(static_cast<unsigned>(placement.hosts() - 1));
  return 2 * model.mapped.latency_us + placement.most() * bytes / model.mapped.bytes_per_us +
         depth * (2 * model.message.latency_us + bytes / model.message.bytes_per_us);
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  const Placement placement(topology);
  const std::vector<int> leaders = placement.leaders(problem.root);
  const int leader = leaders[static_cast<std::size_t>(placement.host())];
  const int h = placement.hosts();
  const int first = placement.host_of(problem.root);
  // Positions in the tree are those of hosts, counted from the root's.
  const auto leader_at = [&](int position) { return leaders[static_cast<std::size_t>((position + first) % h)]; };
  int above = -1;  // who sends to this rank
  std::vector<int> below;
  if (topology.rank != leader) {
    above = leader;
  } else {
    const BinomialPlace tree = binomial_place((placement.host() + h - first) % h, h);
    above = tree.parent < 0 ? -1 : leader_at(tree.parent);
    for (const int child : tree.children) {
      below.push_back(leader_at(child));
    }
    for (const int r : placement.local()) {
      if (r != leader) {
        below.push_back(r);
      }
    }
  }
  ScheduleBuilder b;
  for (const int r : below) {
    b.receive_token(r);
  }
  if (!below.empty()) {
    b.await();
  }
  if (above >= 0) {
    b.send_token(above);
  }
  const std::int64_t segment = limits.segment_bytes / problem.element() * problem.element();
  b.for_chunks(problem.bytes(), segment, 0, [&](const Chunk& c) {
    if (above >= 0) {
      b.receive(above, output(c.offset, c.stride), c.bytes);
      if (!below.empty()) {
        b.await();
      }
    }
    for (const int r : below) {
      b.send(r, above >= 0 ? output(c.offset, c.stride) : input(c.offset, c.stride), c.bytes);
    }
  });
  if (above < 0) {
    b.copy(input(0), {output(0)}, problem.bytes());
  } else if (below.empty()) {
    b.await();
  }
  return b.build_messages();
}

const RegisterAlgorithm registration({"hierarchical", Collective::kBroadcast,
                                      "Down a binomial tree of hosts, then to the ranks of each host.",
                                      "Thakur, Rabenseifner and Gropp 2005", Determinism::kCanonical, unsupported, cost,
                                      build});

}  // namespace
}  // namespace collectives
