// ring all-reduce: a reduce-scatter and an all-gather around a ring.
//
// The buffer is split into n parts. In step t of the first n-1, rank r sends part r-t to rank r+1 and adds part r-t-1
// from rank r-1 to its own; after them it holds the finished part r+1. In the next n-1 steps the finished parts travel
// once around. 2 (n-1) steps, 2 (n-1)/n S bytes over each link: optimal in bytes, whatever n.
//
// Every step is cut into segments, and a segment is passed on as soon as it has been reduced. Overwriting a part in the
// second half is safe: its finished value has come around the ring, so what was sent of it before has been received.
//
// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.

#include <algorithm>

#include "schedule/algorithm.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const LinkCost link = model.slowest(topology);
  const double share = static_cast<double>(topology.size - 1) / topology.size;
  // Every byte that goes over a mapped link is copied into a cell and out of it.
  const double copies = topology.all_mapped() ? 2.0 : 1.0;
  const auto bytes = static_cast<double>(problem.bytes());
  // A step begins when a segment of the one before is there.
  const double segment = std::min(bytes / topology.size, static_cast<double>(Limits().segment_bytes));
  const int steps = 2 * (topology.size - 1);
  return (steps * link.latency_us + ((steps - 1) * segment + 2 * share * bytes) / link.bytes_per_us) * copies;
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  if (problem.count == 0) {
    return build_schedule("one_shot", problem, topology, limits);
  }
  const int n = topology.size;
  const int me = topology.rank;
  const int next = (me + 1) % n;
  const int previous = (me + n - 1) % n;
  const std::int64_t unit = problem.element();
  const std::int64_t segment = limits.segment_bytes / unit * unit;
  ScheduleBuilder b;
  const auto each_segment = [&](int index, auto body) {
    const Part part = part_of(problem.bytes(), unit, n, (index % n + n) % n);
    if (part.bytes == 0) {
      return;  // one part that is not empty visits every rank twice, so no rank ends before all have entered
    }
    b.for_chunks(part.bytes, segment, 0, [&](const Chunk& c) { body(part.offset + c.offset, c.stride, c.bytes); });
  };
  each_segment(
      me, [&](std::int64_t at, std::int64_t stride, std::int64_t bytes) { b.send(next, input(at, stride), bytes); });
  for (int t = 0; t < n - 1; ++t) {
    each_segment(me - t - 1, [&](std::int64_t at, std::int64_t stride, std::int64_t bytes) {
      b.receive_reduce(previous, input(at, stride), output(at, stride), bytes, t == n - 2).await();
      b.send(next, output(at, stride), bytes);
    });
  }
  for (int t = 0; t < n - 1; ++t) {
    each_segment(me - t, [&](std::int64_t at, std::int64_t stride, std::int64_t bytes) {
      b.receive(previous, output(at, stride), bytes);
      if (t < n - 2) {
        b.await().send(next, output(at, stride), bytes);
      }
    });
  }
  if (part_of(problem.bytes(), unit, n, (me + 2) % n).bytes > 0) {
    b.await();  // for the last part, which is not passed on
  }
  return b.build_messages();
}

const RegisterAlgorithm registration({"ring", Collective::kAllReduce, "Reduce-scatter, then all-gather, around a ring.",
                                      "Patarasuk and Yuan 2009", Determinism::kFixed, unsupported, cost, build});

}  // namespace
}  // namespace collectives
