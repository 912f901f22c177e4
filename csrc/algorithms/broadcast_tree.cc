// tree broadcast: down a binomial tree.
//
// Ranks are numbered from the root. The parent of v is v without its lowest set bit. First a token goes up from the
// leaves (no rank returns before all have entered), then the data go down, segment by segment: log2(n) latencies, S
// bytes per edge.
//
// Source: the binomial broadcast of MPI libraries (Thakur, Rabenseifner and Gropp 2005).

#include <bit>
#include <vector>

#include "schedule/algorithm.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const LinkCost link = model.slowest(topology);
  const int depth = std::bit_width(static_cast<unsigned>(topology.size - 1));
  const double copies = topology.all_mapped() ? 2.0 : 1.0;
  return 2.0 * depth * link.latency_us + copies * depth * static_cast<double>(problem.bytes()) / link.bytes_per_us;
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  const int n = topology.size;
  const int virtual_rank = (topology.rank + n - problem.root) % n;
  const auto real = [&](int v) { return (v + problem.root) % n; };
  const int low_bit =
      virtual_rank == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(n))) : virtual_rank & -virtual_rank;
  std::vector<int> children;
  for (int bit = low_bit / 2; bit > 0; bit /= 2) {
    if (virtual_rank + bit < n) {
      children.push_back(real(virtual_rank + bit));
    }
  }
  const std::int64_t segment = limits.segment_bytes / problem.element() * problem.element();
  ScheduleBuilder b;
  for (const int child : children) {
    b.receive_token(child);
  }
  if (!children.empty()) {
    b.await();
  }
  if (virtual_rank != 0) {
    const int parent = real(virtual_rank - low_bit);
    b.send_token(parent);
    b.for_chunks(problem.bytes(), segment, 0, [&](const Chunk& c) {
      b.receive(parent, output(c.offset, c.stride), c.bytes);
      if (!children.empty()) {
        b.await();
      }
      for (const int child : children) {
        b.send(child, output(c.offset, c.stride), c.bytes);
      }
    });
    if (children.empty()) {
      b.await();
    }
  } else {
    b.for_chunks(problem.bytes(), segment, 0, [&](const Chunk& c) {
      for (const int child : children) {
        b.send(child, input(c.offset, c.stride), c.bytes);
      }
    });
    b.copy(input(0), {output(0)}, problem.bytes());
  }
  return b.build_messages();
}

const RegisterAlgorithm registration({"tree", Collective::kBroadcast, "Down a binomial tree from the root.",
                                      "Thakur, Rabenseifner and Gropp 2005", Determinism::kCanonical, unsupported, cost,
                                      build});

}  // namespace
}  // namespace collectives
