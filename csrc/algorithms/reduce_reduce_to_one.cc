// reduce_to_one reduce: every rank sends its buffer to the root, which reduces in rank order.
//
// Segment by segment, as soon as all have arrived: (n-1) S bytes into the root. At the end the root sends a token to
// every rank, since no rank returns before all have entered.
//
// Source: TensorFlow's ReductionToOneDevice; the linear reduce of MPI libraries.

#include <algorithm>
#include <vector>

#include "schedule/algorithm.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const LinkCost link = model.slowest(topology);
  const double copies = topology.all_mapped() ? 2.0 : 1.0;
  return 2 * link.latency_us * copies +
         copies * (topology.size - 1) * static_cast<double>(problem.bytes()) / link.bytes_per_us;
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  const int n = topology.size;
  const int me = topology.rank;
  const std::int64_t segment = limits.segment_bytes / problem.element() * problem.element();
  ScheduleBuilder b;
  const auto each_segment = [&](auto body) { b.for_chunks(problem.bytes(), segment, 0, body); };
  if (me != problem.root) {
    each_segment([&](const Chunk& c) { b.send(problem.root, input(c.offset, c.stride), c.bytes); });
    b.receive_token(problem.root).await();
  } else {
    const std::int64_t slot = std::min(segment, problem.bytes());
    const std::int64_t received = b.scratch(slot * n);
    each_segment([&](const Chunk& c) {
      std::vector<Operand> sources;
      for (int r = 0; r < n; ++r) {
        if (r == me) {
          sources.push_back(input(c.offset, c.stride));
        } else {
          b.receive(r, scratch_at(received + r * slot), c.bytes);
          sources.push_back(scratch_at(received + r * slot));
        }
      }
      b.await().reduce(sources, {output(c.offset, c.stride)}, c.bytes, true);
    });
    for (int r = 0; r < n; ++r) {
      if (r != me) {
        b.send_token(r);
      }
    }
  }
  return b.build_messages();
}

const RegisterAlgorithm registration({"reduce_to_one", Collective::kReduce,
                                      "Everyone sends to the root, which reduces in rank order.",
                                      "TensorFlow's ReductionToOneDevice", Determinism::kCanonical, unsupported, cost,
                                      build});

}  // namespace
}  // namespace collectives
