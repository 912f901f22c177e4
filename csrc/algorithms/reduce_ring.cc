// ring reduce: a pipeline from rank to rank that ends at the root.
//
// Ranks form a chain, host by host, from the root on. The last one sends its buffer, segment by segment; every other
// one adds its own to what comes and passes it on, so S bytes enter and leave each host, at the full speed of its port,
// once the pipeline is full. A rank has two segments of scratch memory: one comes while the other leaves.
//
// When the root has the first segment all ranks have entered, and it sends each a token, since none returns before.
//
// Source: the pipelined chain reduce of MPI libraries and of NCCL.

#include <algorithm>

#include "schedule/placement.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& topology) { return needs_hosts(topology); }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const auto bytes = static_cast<double>(problem.bytes());
  const int hops = static_cast<int>(topology.by_host().size()) - 1;
  const auto segment = static_cast<double>(pipeline_segment(problem.bytes(), problem.element(), hops, Limits()));
  return topology.size * model.message.latency_us +
         (hops * std::min(segment, bytes) + bytes) / model.message.bytes_per_us;
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  const Placement placement(topology);
  const std::vector<int> chain = placement.chain(problem.root);
  const int n = topology.size;
  const int position = placement.position(chain);
  const std::int64_t bytes = problem.bytes();
  const std::int64_t segment = pipeline_segment(bytes, problem.element(), placement.hosts() - 1, limits);
  ScheduleBuilder b;
  if (position == 0) {
    const auto send_tokens = [&] {
      for (int i = 1; i < n; ++i) {
        b.send_token(chain[i]);
      }
    };
    if (n == 2) {
      send_tokens();
    }
    b.for_chunks(bytes, segment, 1, [&](const Chunk& c) {
      b.receive_reduce(chain[1], input(c.offset, c.stride), output(c.offset, c.stride), c.bytes, true);
      if (c.index == 0 && n > 2) {
        b.await();
        send_tokens();
      }
    });
    if (n == 2 || bytes > segment) {
      b.await();
    }
    return b.build_messages();
  }
  if (position == n - 1) {
    b.for_chunks(bytes, segment, 0,
                 [&](const Chunk& c) { b.send(chain[position - 1], input(c.offset, c.stride), c.bytes); });
  } else {
    const std::int64_t slot = std::min(segment, bytes);
    const std::int64_t slots[] = {b.scratch(slot), b.scratch(bytes > segment ? slot : 0)};
    b.for_chunks(
        bytes, 2 * segment, 1,
        [&](const Chunk& c) {
          for (int half = 0; half < 2; ++half) {
            const std::int64_t at = half * segment;
            const std::int64_t length = std::min(segment, c.bytes - at);
            if (half > 0 && length <= 0) {
              break;
            }
            b.receive_reduce(chain[position + 1], input(c.offset + at, c.stride), scratch_at(slots[half]), length,
                             false);
            b.await();
            // What has been sent from the other slot has left, so the next segment may come.
            const bool last = c.stride == 0 && c.offset + at + length >= bytes;
            if (!last && (c.index > 0 || half > 0)) {
              b.flush();
            }
            b.send(chain[position - 1], scratch_at(slots[half]), length);
          }
        },
        1);
  }
  b.receive_token(problem.root).await();
  return b.build_messages();
}

const RegisterAlgorithm registration({"ring", Collective::kReduce, "Partial sums travel along a chain to the root.",
                                      "the pipelined chain of MPI libraries and NCCL", Determinism::kFixed, unsupported,
                                      cost, build});

}  // namespace
}  // namespace collectives
