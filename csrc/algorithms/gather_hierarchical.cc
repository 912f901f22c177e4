// hierarchical gather: what the ranks of a host have goes to the root in one message.
//
// The leader of a host is its lowest rank, and of the root's host the root. The other ranks send it their parts, and it
// sends them on together, so h-1 messages come to the root's host in place of one from each rank: the choice for short
// parts. The root answers with tokens, which leaders pass on: no rank returns before all have entered.
//
// Source: the two-level gather of MPI libraries (Traeff and Rougier 2014).

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
  const auto part = [&](int r) { return problem.part_bytes(r, root, n); };
  ScheduleBuilder b;
  if (me != leader) {
    b.send(leader, input(0), part(me)).receive_token(leader).await();
    return b.build_messages();
  }
  const auto others = [&](auto body) {
    for (const int r : placement.local()) {
      if (r != me) {
        body(r);
      }
    }
  };
  if (me == root) {
    others([&](int r) { b.receive(r, output(exchange.output_offset(r)), part(r)); });
    std::vector<std::int64_t> came;
    for (int i = 0; i < placement.hosts(); ++i) {
      std::int64_t bytes = 0;
      for (const int r : placement.ranks(i)) {
        bytes += part(r);
      }
      came.push_back(i == placement.host() ? 0 : b.scratch(bytes));
      if (i != placement.host()) {
        b.receive(leaders[static_cast<std::size_t>(i)], scratch_at(came.back()), bytes);
      }
    }
    exchange.keep(b);
    b.await();
    for (int i = 0; i < placement.hosts(); ++i) {
      if (i != placement.host()) {
        b.send_token(leaders[static_cast<std::size_t>(i)]);
      }
    }
    others([&](int r) { b.send_token(r); });
    for (int i = 0; i < placement.hosts(); ++i) {
      std::int64_t at = came[static_cast<std::size_t>(i)];
      for (const int r : placement.ranks(i)) {
        if (i != placement.host()) {
          b.copy(scratch_at(at), {output(exchange.output_offset(r))}, part(r));
          at += part(r);
        }
      }
    }
    return b.build_messages();
  }
  Operand together = input(0);
  std::int64_t bytes = part(me);
  if (placement.local().size() > 1) {
    others([&](int r) { bytes += part(r); });
    together = scratch_at(b.scratch(bytes));
    Operand at = together;
    for (const int r : placement.local()) {
      r == me ? b.copy(input(0), {at}, part(r)) : b.receive(r, at, part(r));
      at.offset += part(r);
    }
    b.await();
  }
  b.send(root, together, bytes).receive_token(root).await();
  others([&](int r) { b.send_token(r); });
  return b.build_messages();
}

const RegisterAlgorithm registration({"hierarchical", Collective::kGather,
                                      "Leaders of hosts send what their hosts have to the root.",
                                      "Traeff and Rougier 2014", Determinism::kCanonical, unsupported, cost, build});

}  // namespace
}  // namespace collectives
