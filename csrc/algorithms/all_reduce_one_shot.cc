// one_shot all-reduce: every rank reads every other.
//
// Every rank publishes its whole buffer and every rank reduces all of them, in rank order, so all compute the same
// bits. One synchronisation in all, but n * S bytes read by every rank: the choice for small messages.
//
// mapped: up to the inline payload the values travel in the header line itself; longer ones chunk by chunk through the
// own bounce buffer. Chunk k overwrites the slot of chunk k - slots; that is safe without a flag of its own because a
// rank writes chunk k only after it has seen chunk k - 1 of all ranks, which they wrote after reducing chunk k - 2. Two
// ranks swap bounce buffers: see swapped().
//
// message: every rank sends every segment to every other, and reduces what it received in rank order. In place, the
// segment must have left before it is overwritten: flush.
//
// Source: the "one-shot" kernel of NVIDIA's and Microsoft's custom all-reduces (MSCCL++); in MPI literature "linear".

#include <algorithm>
#include <vector>

#include "schedule/algorithm.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const auto bytes = static_cast<double>(problem.bytes());
  const LinkCost link = model.slowest(topology);
  const int peers = topology.size - 1;
  if (topology.all_mapped()) {
    // Not for symmetric memory: there two_shot, which pushes, takes over earlier.
    const bool swaps = topology.size == 2 && problem.memory == MemoryKind::kPrivate;
    return link.latency_us + peers * bytes / (swaps ? model.swapped_bytes_per_us : model.shared_bytes_per_us);
  }
  // The ranks meet again for each further segment, and wait for the one that took longest to reduce the last. As
  // measured with 2 ranks: two_shot is faster from 2 MiB on.
  const double meetings = std::max(0.0, bytes / static_cast<double>(Limits().exchange_bytes()) - 1);
  return link.latency_us * (1 + 0.3 * (peers - 1) + 1.5 * meetings) + peers * bytes / link.bytes_per_us;
}

Schedule build_mapped(const Problem& problem, const Topology& topology, const Limits& limits) {
  const int me = topology.rank;
  ScheduleBuilder b;
  const auto reduce_all = [&](const Chunk& c, auto source) {
    std::vector<Operand> sources;
    std::vector<FlagRef> flags;
    for (int r = 0; r < topology.size; ++r) {
      sources.push_back(r == me ? input(c.offset, c.stride) : source(r));
      if (r != me) {
        flags.push_back(
            {static_cast<std::uint8_t>(c.index == 0 ? kHeaderFlag : 1), static_cast<std::uint16_t>(r), c.index});
      }
    }
    b.wait(flags).reduce(sources, {output(c.offset, c.stride)}, c.bytes, true);
  };
  if (problem.bytes() <= limits.inline_bytes) {
    b.copy(input(0), {inline_payload(me)}, problem.bytes()).signal(me, kHeaderFlag, 0);
    reduce_all({0, 0, problem.bytes(), 0}, inline_payload);
    return b.build();
  }
  const auto place = [&](int r, const Chunk& c) {
    const Operand own = bounce(r, c.index, 0);
    return topology.size == 2 && limits.swap_buffers ? swapped(own, 1 - r) : own;
  };
  const std::int64_t chunk_bytes = limits.stage_bytes() / problem.element() * problem.element();
  b.for_chunks(problem.bytes(), chunk_bytes, 1, [&](const Chunk& c) {
    b.copy(input(c.offset, c.stride), {place(me, c)}, c.bytes);
    b.signal(me, c.index == 0 ? kHeaderFlag : 1, c.index);
    // Of two ranks the other one is the only reader of a bounce buffer.
    reduce_all(c, [&](int r) { return topology.size == 2 ? owned(place(r, c)) : place(r, c); });
  });
  return b.build();
}

Schedule build_message(const Problem& problem, const Topology& topology, const Limits& limits) {
  const int me = topology.rank;
  const std::int64_t segment = limits.exchange_bytes() / problem.element() * problem.element();
  ScheduleBuilder b;
  const std::int64_t slot = std::min(segment, problem.bytes());
  const std::int64_t received = b.scratch(slot * (topology.size - 1));
  b.for_chunks(problem.bytes(), segment, 0, [&](const Chunk& c) {
    std::vector<Operand> sources;
    for (int i = 1; i < topology.size; ++i) {
      // Every rank starts with another peer, so that none is flooded first.
      const int to = (me + i) % topology.size;
      b.send(to, input(c.offset, c.stride), c.bytes);
    }
    for (int r = 0; r < topology.size; ++r) {
      if (r == me) {
        sources.push_back(input(c.offset, c.stride));
        continue;
      }
      sources.push_back(scratch_at(received + (r < me ? r : r - 1) * slot));
      b.receive(r, sources.back(), c.bytes);
    }
    b.await().flush().reduce(sources, {output(c.offset, c.stride)}, c.bytes, true);
  });
  return b.build_messages();
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  return topology.all_mapped() ? build_mapped(problem, topology, limits) : build_message(problem, topology, limits);
}

const RegisterAlgorithm registration({"one_shot", Collective::kAllReduce,
                                      "Everyone reads everyone and reduces in rank order.",
                                      "MSCCL++ one-shot all-reduce; the linear algorithm of MPI libraries",
                                      Determinism::kCanonical, unsupported, cost, build});

}  // namespace
}  // namespace collectives
