// reduce_to_one all-reduce: rank 0 reduces everything and sends the result to all.
//
// Every rank sends its buffer to rank 0, segment by segment; rank 0 reduces each segment in rank order as soon as all
// have arrived, and sends it back. (n-1) S bytes into rank 0 and as many out of it: simple, and a bottleneck for large
// n.
//
// Source: TensorFlow's ReductionToOneDevice.

#include <algorithm>
#include <vector>

#include "schedule/algorithm.h"

namespace collectives {
namespace {

constexpr int kRoot = 0;

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const LinkCost link = model.slowest(topology);
  return 2 * link.latency_us + 2.0 * (topology.size - 1) * static_cast<double>(problem.bytes()) / link.bytes_per_us;
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  const int n = topology.size;
  const int me = topology.rank;
  const std::int64_t unit = problem.element();
  const std::int64_t segment = limits.segment_bytes / unit * unit;
  ScheduleBuilder b;
  const auto each_segment = [&](auto body) { b.for_chunks(problem.bytes(), segment, 0, body); };
  if (me != kRoot) {
    each_segment([&](const Chunk& c) { b.send(kRoot, input(c.offset, c.stride), c.bytes); });
    // A segment comes back only after rank 0 has received it, so overwriting it in place is safe.
    each_segment([&](const Chunk& c) { b.receive(kRoot, output(c.offset, c.stride), c.bytes); });
    b.await();
  } else {
    const std::int64_t slot = std::min(segment, problem.bytes());
    const std::int64_t received = b.scratch(slot * n);
    each_segment([&](const Chunk& c) {
      std::vector<Operand> sources{input(c.offset, c.stride)};
      for (int r = 1; r < n; ++r) {
        b.receive(r, scratch_at(received + r * slot), c.bytes);
        sources.push_back(scratch_at(received + r * slot));
      }
      b.await().reduce(sources, {output(c.offset, c.stride)}, c.bytes, true);
      for (int r = 1; r < n; ++r) {
        b.send(r, output(c.offset, c.stride), c.bytes);
      }
    });
  }
  return b.build_messages();
}

const RegisterAlgorithm registration({"reduce_to_one", Collective::kAllReduce,
                                      "Rank 0 reduces all buffers and sends the result to all.",
                                      "TensorFlow's ReductionToOneDevice", Determinism::kCanonical, unsupported, cost,
                                      build});

}  // namespace
}  // namespace collectives
