// ring broadcast: a pipeline from rank to rank.
//
// The root sends segments to the next rank, which passes each on as soon as it has it. n-1 latencies to fill the
// pipeline, then S bytes over every link at the full speed of one link: the choice for long buffers over message links.
// Before that a token goes back along the chain (no rank returns before all have entered).
//
// Source: the pipelined chain broadcast of MPI libraries and of NCCL.

#include "schedule/algorithm.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const LinkCost link = model.slowest(topology);
  const double copies = topology.all_mapped() ? 2.0 : 1.0;
  return 2.0 * (topology.size - 1) * link.latency_us * copies +
         copies * static_cast<double>(problem.bytes()) / link.bytes_per_us;
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  const int n = topology.size;
  const int place = (topology.rank + n - problem.root) % n;
  const int next = (topology.rank + 1) % n;
  const int previous = (topology.rank + n - 1) % n;
  const bool last = place == n - 1;
  const std::int64_t segment = limits.segment_bytes / problem.element() * problem.element();
  ScheduleBuilder b;
  if (!last) {
    b.receive_token(next).await();
  }
  if (place != 0) {
    b.send_token(previous);
    b.for_chunks(problem.bytes(), segment, 0, [&](const Chunk& c) {
      b.receive(previous, output(c.offset, c.stride), c.bytes);
      if (!last) {
        b.await().send(next, output(c.offset, c.stride), c.bytes);
      }
    });
    if (last) {
      b.await();
    }
  } else {
    if (!last) {
      b.for_chunks(problem.bytes(), segment, 0,
                   [&](const Chunk& c) { b.send(next, input(c.offset, c.stride), c.bytes); });
    }
    b.copy(input(0), {output(0)}, problem.bytes());
  }
  return b.build_messages();
}

const RegisterAlgorithm registration({"ring", Collective::kBroadcast, "A pipeline from each rank to the next.",
                                      "the pipelined chain of MPI libraries and NCCL", Determinism::kCanonical,
                                      unsupported, cost, build});

}  // namespace
}  // namespace collectives
