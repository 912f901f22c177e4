// hierarchical scatter: what the root has for the ranks of a host goes there in one message.
//
// The leader of a host is its lowest rank, and of the root's host the root. Tokens go to the leaders and from them to
// the root (no rank returns before all have entered). Then the root sends each leader what it has for all ranks of its
// host, and the leader sends each its part. So h-1 messages leave the root's host in place of one for each rank: the
// choice for short parts.
//
// Source: the two-level scatter of MPI libraries (Traeff and Rougier 2014).

#include <algorithm>
#include <vector>

#include "schedule/exchange.h"
#include "schedule/placement.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& topology) { return needs_hosts(topology); }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const Placement placement(topology);
  const double h = placement.hosts();
  const auto bytes = static_cast<double>(problem.bytes());
  return 2 * model.mapped.latency_us + bytes / h / model.mapped.bytes_per_us + 2 * bytes / model.copy_bytes_per_us +
         (2 + 0.3 * (h - 2)) * model.message.latency_us + (h - 1) / h * bytes / model.message.bytes_per_us;
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  const Exchange exchange(problem, topology, limits);
  const Placement placement(topology);
  const int n = topology.size;
  const int me = topology.rank;
  const int root = problem.root;
  const std::vector<int> leaders = placement.leaders(root);
  const int leader = leaders[static_cast<std::size_t>(placement.host())];
  const auto part = [&](int r) { return problem.part_bytes(root, r, n); };
  ScheduleBuilder b;
  if (me != leader) {
    b.send_token(leader).receive(leader, output(0), part(me)).await();
    return b.build_messages();
  }
  const auto others = [&](auto body) {
    for (const int r : placement.local()) {
      if (r != me) {
        body(r);
      }
    }
  };
  others([&](int r) { b.receive_token(r); });
  if (me == root) {
    for (const int r : leaders) {
      if (r != me) {
        b.receive_token(r);
      }
    }
    b.await();
    for (int i = 0; i < placement.hosts(); ++i) {
      if (i == placement.host()) {
        continue;
      }
      std::int64_t bytes = 0;
      for (const int r : placement.ranks(i)) {
        bytes += part(r);
      }
      const std::int64_t together = b.scratch(bytes);
      std::int64_t at = together;
      for (const int r : placement.ranks(i)) {
        b.copy(input(exchange.input_offset(me, r)), {scratch_at(at)}, part(r));
        at += part(r);
      }
      b.send(leaders[static_cast<std::size_t>(i)], scratch_at(together), bytes);
    }
    others([&](int r) { b.send(r, input(exchange.input_offset(me, r)), part(r)); });
    exchange.keep(b);
    return b.build_messages();
  }
  if (placement.local().size() == 1) {
    b.send_token(root).receive(root, output(0), part(me)).await();
    return b.build_messages();
  }
  b.await();
  std::int64_t bytes = part(me);
  others([&](int r) { bytes += part(r); });
  const std::int64_t together = b.scratch(bytes);
  b.send_token(root).receive(root, scratch_at(together), bytes).await();
  std::int64_t at = together;
  for (const int r : placement.local()) {
    r == me ? b.copy(scratch_at(at), {output(0)}, part(r)) : b.send(r, scratch_at(at), part(r));
    at += part(r);
  }
  return b.build_messages();
}

const RegisterAlgorithm registration({"hierarchical", Collective::kScatter,
                                      "The root sends leaders of hosts what it has for their hosts.",
                                      "Traeff and Rougier 2014", Determinism::kCanonical, unsupported, cost, build});

}  // namespace
}  // namespace collectives
