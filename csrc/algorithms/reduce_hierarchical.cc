// hierarchical reduce: to one rank of every host, then up a binomial tree of hosts.
//
// The leader of a host is its lowest rank, and of the root's host the root. Leaders reduce what the ranks of their host
// and the leaders below them in the tree send, segment by segment, and pass the sum on. So log2(h) messages between
// hosts come one after the other, S bytes each: the choice for short buffers. Tokens go down the same way at the end,
// since no rank returns before all have entered.
//
// Source: the two-level and binomial reductions of MPI libraries (Thakur, Rabenseifner and Gropp 2005).

#include <algorithm>
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
  const std::int64_t segment = limits.segment_bytes / problem.element() * problem.element();
  ScheduleBuilder b;
  const auto send_input = [&](int to) {
    b.for_chunks(problem.bytes(), segment, 0, [&](const Chunk& c) { b.send(to, input(c.offset, c.stride), c.bytes); });
  };
  if (topology.rank != leader) {
    send_input(leader);
    b.receive_token(leader).await();
    return b.build_messages();
  }
  // Positions in the tree are those of hosts, counted from the root's.
  const int h = placement.hosts();
  const int first = placement.host_of(problem.root);
  const auto leader_at = [&](int position) { return leaders[static_cast<std::size_t>((position + first) % h)]; };
  const BinomialPlace tree = binomial_place((placement.host() + h - first) % h, h);
  std::vector<int> below;
  for (const int child : tree.children) {
    below.push_back(leader_at(child));
  }
  for (const int r : placement.local()) {
    if (r != leader) {
      below.push_back(r);
    }
  }
  const bool root = tree.parent < 0;
  if (below.empty()) {
    send_input(leader_at(tree.parent));
  } else {
    const std::int64_t slot = std::min(segment, problem.bytes());
    const std::int64_t received = b.scratch(slot * static_cast<std::int64_t>(below.size()));
    const std::int64_t sum = b.scratch(root ? 0 : slot);
    b.for_chunks(problem.bytes(), segment, 1, [&](const Chunk& c) {
      std::vector<Operand> sources{input(c.offset, c.stride)};
      for (std::size_t i = 0; i < below.size(); ++i) {
        sources.push_back(scratch_at(received + static_cast<std::int64_t>(i) * slot));
        b.receive(below[i], sources.back(), c.bytes);
      }
      b.await();
      if (root) {
        b.reduce(sources, {output(c.offset, c.stride)}, c.bytes, true);
        return;
      }
      if (c.index > 0) {
        b.flush();
      }
      b.reduce(sources, {scratch_at(sum)}, c.bytes, false);
      b.send(leader_at(tree.parent), scratch_at(sum), c.bytes);
    });
  }
  if (!root) {
    b.receive_token(leader_at(tree.parent)).await();
  }
  for (const int r : below) {
    b.send_token(r);
  }
  return b.build_messages();
}

const RegisterAlgorithm registration({"hierarchical", Collective::kReduce,
                                      "To the leaders of hosts, then up a binomial tree of hosts.",
                                      "Thakur, Rabenseifner and Gropp 2005", Determinism::kFixed, unsupported, cost,
                                      build});

}  // namespace
}  // namespace collectives
