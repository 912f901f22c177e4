// ring broadcast: a pipeline from rank to rank.
//
// Ranks form a chain, host by host, from the root on. The root sends segments to the next rank, which passes each on as
// soon as it has it: n-1 latencies to fill the pipeline, then S bytes over every link and through every port once, at
// their full speed: the choice for long buffers over message links. When the last rank has the first segment all have
// entered, and it sends each a token, since none returns before.
//
// Source: the pipelined chain broadcast of MPI libraries and of NCCL.

#include <algorithm>

#include "schedule/placement.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

// Hops between hosts; where there is one host, between ranks.
int hops_of(int hosts, int size) { return hosts > 1 ? hosts - 1 : size - 1; }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const auto bytes = static_cast<double>(problem.bytes());
  if (topology.all_mapped()) {
    return 2 * (2.0 * (topology.size - 1) * model.mapped.latency_us + bytes / model.mapped.bytes_per_us);
  }
  const int hops = hops_of(Placement(topology).hosts(), topology.size);
  const auto segment = static_cast<double>(pipeline_segment(problem.bytes(), problem.element(), hops, Limits()));
  return topology.size * model.message.latency_us +
         (hops * std::min(segment, bytes) + bytes) / model.message.bytes_per_us;
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  const Placement placement(topology);
  const std::vector<int> chain = placement.chain(problem.root);
  const int n = topology.size;
  const int position = placement.position(chain);
  const int last = chain[static_cast<std::size_t>(n - 1)];
  const std::int64_t bytes = problem.bytes();
  const std::int64_t segment = pipeline_segment(bytes, problem.element(), hops_of(placement.hosts(), n), limits);
  ScheduleBuilder b;
  if (position == 0) {
    b.for_chunks(bytes, segment, 0, [&](const Chunk& c) { b.send(chain[1], input(c.offset, c.stride), c.bytes); });
    b.copy(input(0), {output(0)}, bytes);
    b.receive_token(last).await();
    return b.build_messages();
  }
  const int previous = chain[static_cast<std::size_t>(position - 1)];
  if (position < n - 1) {
    b.for_chunks(bytes, segment, 0, [&](const Chunk& c) {
      b.receive(previous, output(c.offset, c.stride), c.bytes).await();
      b.send(chain[static_cast<std::size_t>(position + 1)], output(c.offset, c.stride), c.bytes);
    });
    b.receive_token(last).await();
    return b.build_messages();
  }
  const auto send_tokens = [&] {
    for (int i = 0; i < n - 1; ++i) {
      b.send_token(chain[static_cast<std::size_t>(i)]);
    }
  };
  if (n == 2) {
    send_tokens();
  }
  b.for_chunks(bytes, segment, 1, [&](const Chunk& c) {
    b.receive(previous, output(c.offset, c.stride), c.bytes);
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

const RegisterAlgorithm registration({"ring", Collective::kBroadcast, "A pipeline from each rank to the next.",
                                      "the pipelined chain of MPI libraries and NCCL", Determinism::kCanonical,
                                      unsupported, cost, build});

}  // namespace
}  // namespace collectives
