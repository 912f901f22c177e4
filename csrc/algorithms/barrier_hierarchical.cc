// hierarchical barrier: to one rank of every host, then dissemination between hosts.
//
// The lowest rank of a host is its leader. It awaits a token of every other rank of the host. In round k the leader of
// host i sends a token to that of host i + 2^k, counted around, and awaits one from that of host i - 2^k, so each tells
// what it has heard of: log2(h) latencies, whatever the number of hosts. Then it sends a token to the ranks of its
// host.
//
// Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988.

#include <bit>
#include <vector>

#include "schedule/placement.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& topology) { return needs_hosts(topology); }

double cost(const Problem& /*problem*/, const Topology& topology, const CostModel& model) {
  const Placement placement(topology);
  const int rounds = std::bit_width(static_cast<unsigned>(placement.hosts() - 1));
  return (placement.most() > 1 ? 2 * model.mapped.latency_us : 0) + rounds * model.message.latency_us;
}

Schedule build(const Problem& /*problem*/, const Topology& topology, const Limits& /*limits*/) {
  const Placement placement(topology);
  const int h = placement.hosts();
  const int leader = placement.local()[0];
  ScheduleBuilder b;
  if (topology.rank != leader) {
    b.send_token(leader).receive_token(leader).await();
    return b.build();
  }
  const auto others = [&](auto body) {
    for (const int r : placement.local()) {
      if (r != leader) {
        body(r);
      }
    }
  };
  others([&](int r) { b.receive_token(r); });
  if (placement.local().size() > 1) {
    b.await();
  }
  for (int distance = 1; distance < h; distance *= 2) {
    // What came in the round before tells the next host of hosts that it does not hear of otherwise.
    if (distance > 1 && 3 * (distance / 2) < h) {
      b.await();
    }
    b.send_token(placement.around(distance)).receive_token(placement.around(-distance));
  }
  b.await();
  others([&](int r) { b.send_token(r); });
  return b.build();
}

const RegisterAlgorithm registration({"hierarchical", Collective::kBarrier,
                                      "Within hosts to a leader, which all tell ever more distant ones.",
                                      "Hensgen, Finkel and Manber 1988", Determinism::kCanonical, unsupported, cost,
                                      build});

}  // namespace
}  // namespace collectives
