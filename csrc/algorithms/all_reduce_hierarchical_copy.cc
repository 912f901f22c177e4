// hierarchical_copy all-reduce: two halves with a main rank each.
//
// The first ceil(n/2) ranks have main 0, the other floor(n/2) have main ceil(n/2). Each half is summed on its main, the
// two sums are combined on main 0, the result goes to the other main, and each main sends it to its half. All of it
// segment by segment.
//
// Source: TensorFlow's HierarchicalCopyAllReduce, which for an odd number drops the last replica; here the halves cover
// all.

#include <algorithm>
#include <vector>

#include "schedule/algorithm.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const LinkCost link = model.slowest(topology);
  const int half = (topology.size + 1) / 2;
  return 4 * link.latency_us + 2.0 * half * static_cast<double>(problem.bytes()) / link.bytes_per_us;
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  const int n = topology.size;
  const int me = topology.rank;
  const int first_half = (n + 1) / 2;
  const int my_main = me < first_half ? 0 : first_half;
  const int other_main = me < first_half ? first_half : 0;
  const int end = me < first_half ? first_half : n;
  const std::int64_t unit = problem.element();
  const std::int64_t segment = limits.segment_bytes / unit * unit;
  ScheduleBuilder b;
  const auto each_segment = [&](auto body) { b.for_chunks(problem.bytes(), segment, 0, body); };
  const auto at = [](const Chunk& c) { return output(c.offset, c.stride); };
  // Sums the own half into the output; with one member that is a copy. True when it ended in the output.
  const std::int64_t slot = std::min(segment, problem.bytes());
  const auto sum_half = [&](const Chunk& c, std::int64_t received) {
    std::vector<Operand> sources{input(c.offset, c.stride)};
    for (int r = my_main + 1; r < end; ++r) {
      const std::int64_t place = received + (r - my_main) * slot;
      b.receive(r, scratch_at(place), c.bytes);
      sources.push_back(scratch_at(place));
    }
    if (sources.size() > 1) {
      b.await().reduce(sources, {at(c)}, c.bytes, false);
      return at(c);
    }
    return sources[0];
  };
  const auto to_half = [&](const Chunk& c) {
    for (int r = my_main + 1; r < end; ++r) {
      b.send(r, at(c), c.bytes);
    }
  };
  if (me != my_main) {
    each_segment([&](const Chunk& c) { b.send(my_main, input(c.offset, c.stride), c.bytes); });
    each_segment([&](const Chunk& c) { b.receive(my_main, at(c), c.bytes); });
    b.await();
  } else if (me == 0) {
    const std::int64_t received = b.scratch(slot * first_half);
    each_segment([&](const Chunk& c) {
      const Operand half = sum_half(c, received);
      b.receive_reduce(other_main, half, at(c), c.bytes, true).await();
      b.send(other_main, at(c), c.bytes);
      to_half(c);
    });
  } else {
    const std::int64_t received = b.scratch(slot * first_half);
    // The sums go ahead of the results, so that main 0 never waits for a round trip.
    each_segment([&](const Chunk& c) { b.send(other_main, sum_half(c, received), c.bytes); });
    each_segment([&](const Chunk& c) {
      b.receive(other_main, at(c), c.bytes);
      if (end - my_main > 1) {
        b.await();
        to_half(c);
      }
    });
    if (end - my_main == 1) {
      b.await();
    }
  }
  return b.build_messages();
}

const RegisterAlgorithm registration({"hierarchical_copy", Collective::kAllReduce,
                                      "Two halves are summed on a main rank each, then the sums on the first.",
                                      "TensorFlow's HierarchicalCopyAllReduce", Determinism::kFixed, unsupported, cost,
                                      build});

}  // namespace
}  // namespace collectives
