// bruck all-gather: hosts pass on all they have, twice as much in every round.
//
// The lowest rank of every host is its leader: the others send it their parts. It keeps blocks, one for each of h
// hosts, from its own on, counted around. In the round of distance d = 1, 2, 4, ... the leader of host i sends its
// first d blocks, as many as the other lacks, to that of host i - d, and gets the d blocks behind its own from host i +
// d. So log2(h) messages come one after the other, whatever the number of hosts: the choice for short parts. At the end
// it puts the parts in order and sends everything to the ranks of its host.
//
// Source: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in multiport
// message-passing systems", 1997.

#include <algorithm>
#include <bit>
#include <vector>

#include "schedule/exchange.h"
#include "schedule/placement.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& topology) { return needs_hosts(topology); }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const Placement placement(topology);
  const auto bytes = static_cast<double>(problem.bytes());
  const double h = placement.hosts();
  const int rounds = std::bit_width(static_cast<unsigned>(placement.hosts() - 1));
  return 2 * model.mapped.latency_us + placement.most() * bytes / model.mapped.bytes_per_us +
         bytes / model.copy_bytes_per_us + rounds * model.message.latency_us +
         (h - 1) / h * bytes / model.message.bytes_per_us;
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  const Exchange exchange(problem, topology, limits);
  const Placement placement(topology);
  const int me = topology.rank;
  const int leader = placement.local()[0];
  const int h = placement.hosts();
  const Operand own = input(exchange.input_offset(me, me));
  ScheduleBuilder b;
  if (me != leader) {
    b.send(leader, own, exchange.part(me, me)).receive(leader, output(0), problem.bytes()).await();
    return b.build_messages();
  }
  // begins[i]: where the block of the host i behind this one begins.
  const auto host_behind = [&](int i) { return (placement.host() + i + h) % h; };
  const std::int64_t blocks = b.scratch(problem.bytes());
  std::vector<std::int64_t> begins{blocks};
  for (int i = 0; i < h; ++i) {
    std::int64_t end = begins.back();
    for (const int r : placement.ranks(host_behind(i))) {
      end += exchange.part(r, me);
    }
    begins.push_back(end);
  }
  std::int64_t at = blocks + exchange.part(me, me);
  b.copy(own, {scratch_at(blocks)}, exchange.part(me, me));
  for (const int r : placement.local()) {
    if (r != me) {
      b.receive(r, scratch_at(at), exchange.part(r, me));
      at += exchange.part(r, me);
    }
  }
  bool receiving = placement.local().size() > 1;
  for (int distance = 1; distance < h; distance *= 2) {
    const int count = std::min(distance, h - distance);
    // In the last round perhaps what came in the one before does not go on.
    if (receiving && (distance == 1 || count > distance / 2)) {
      b.await();
    }
    const auto leader_behind = [&](int i) { return placement.ranks(host_behind(i))[0]; };
    b.send(leader_behind(-distance), scratch_at(blocks), begins[static_cast<std::size_t>(count)] - blocks);
    const std::int64_t begin = begins[static_cast<std::size_t>(distance)];
    b.receive(leader_behind(distance), scratch_at(begin), begins[static_cast<std::size_t>(distance + count)] - begin);
    receiving = true;
  }
  b.await();
  at = blocks;
  for (int i = 0; i < h; ++i) {
    for (const int r : placement.ranks(host_behind(i))) {
      b.copy(scratch_at(at), {output(exchange.output_offset(r))}, exchange.part(r, me));
      at += exchange.part(r, me);
    }
  }
  for (const int r : placement.local()) {
    if (r != me) {
      b.send(r, output(0), problem.bytes());
    }
  }
  return b.build_messages();
}

const RegisterAlgorithm registration({"bruck", Collective::kAllGather,
                                      "Leaders of hosts pass on all they have, twice as much in every round.",
                                      "Bruck et al. 1997", Determinism::kCanonical, unsupported, cost, build});

}  // namespace
}  // namespace collectives
