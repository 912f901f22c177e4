// hierarchical all-reduce: within hosts by shared memory, between hosts by the network.
//
// The lowest rank of every host is its leader. Leaders reduce the buffers of their host, segment by segment; all
// leaders together all-reduce the sums around a ring; leaders send the result to their host. Only the leaders' traffic
// crosses the network: 2 (h-1)/h S bytes per host for h hosts, however many ranks a host has.
//
// Source: the two-level all-reduce of MPI libraries (Traeff and Rougier 2014; Horovod's hierarchical all-reduce).

#include <algorithm>
#include <vector>

#include "schedule/algorithm.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& topology) {
  return topology.size > 1 && topology.all_mapped() ? "all ranks are on one host; it needs ranks on several hosts" : "";
}

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const auto hosts = topology.by_host();
  std::size_t local = 0;
  for (const auto& ranks : hosts) {
    local = std::max(local, ranks.size());
  }
  const auto bytes = static_cast<double>(problem.bytes());
  const auto h = static_cast<double>(hosts.size());
  return 2 * model.mapped.latency_us + 2.0 * static_cast<double>(local) * bytes / model.mapped.bytes_per_us +
         2 * (h - 1) * model.message.latency_us + 2 * (h - 1) / h * bytes / model.message.bytes_per_us;
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  const auto hosts = topology.by_host();
  std::vector<int> leaders;
  std::vector<int> local;
  for (const auto& ranks : hosts) {
    leaders.push_back(ranks[0]);
    if (topology.host[ranks[0]] == topology.host[topology.rank]) {
      local = ranks;
    }
  }
  const int leader = local[0];
  const std::int64_t unit = problem.element();
  const std::int64_t segment = limits.segment_bytes / unit * unit;
  ScheduleBuilder b;
  const auto each_segment = [&](auto body) { b.for_chunks(problem.bytes(), segment, 0, body); };
  if (topology.rank != leader) {
    each_segment([&](const Chunk& c) { b.send(leader, input(c.offset, c.stride), c.bytes); });
    each_segment([&](const Chunk& c) { b.receive(leader, output(c.offset, c.stride), c.bytes); });
    b.await();
  } else {
    const std::int64_t slot = std::min(segment, problem.bytes());
    const std::int64_t received = b.scratch(slot * static_cast<std::int64_t>(local.size()));
    if (local.size() > 1) {
      each_segment([&](const Chunk& c) {
        std::vector<Operand> sources{input(c.offset, c.stride)};
        for (std::size_t i = 1; i < local.size(); ++i) {
          const std::int64_t place = received + static_cast<std::int64_t>(i) * slot;
          b.receive(local[i], scratch_at(place), c.bytes);
          sources.push_back(scratch_at(place));
        }
        b.await().reduce(sources, {output(c.offset, c.stride)}, c.bytes, false);
      });
    }
    Topology between;
    between.size = static_cast<int>(leaders.size());
    for (int i = 0; i < between.size; ++i) {
      between.host.push_back(i);
      if (leaders[i] == leader) {
        between.rank = i;
      }
    }
    Schedule ring = build_schedule("ring", problem, between, limits);
    if (local.size() > 1) {
      for (Operand& operand : ring.operands) {
        if (operand.region == Region::kInput) {
          operand.region = Region::kOutput;
        }
      }
    }
    b.over(leaders, ring);
    if (local.size() > 1) {
      each_segment([&](const Chunk& c) {
        for (std::size_t i = 1; i < local.size(); ++i) {
          b.send(local[i], output(c.offset, c.stride), c.bytes);
        }
      });
    }
  }
  return b.build_messages();
}

const RegisterAlgorithm registration(
    {"hierarchical", Collective::kAllReduce,
     "Leaders reduce within hosts, all-reduce between hosts, and send the result back.",
     "Traeff and Rougier 2014; Horovod's hierarchical all-reduce", Determinism::kFixed, unsupported, cost, build});

}  // namespace
}  // namespace collectives
