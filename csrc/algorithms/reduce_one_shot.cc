// one_shot reduce: every rank publishes, the root reads all and reduces in rank order.
//
// Chunk by chunk through the bounce buffers; a rank waits for the root to have read chunk k-1 after it has written
// chunk k.
//
// Source: the linear reduce of MPI libraries.

#include <vector>

#include "schedule/algorithm.h"

namespace collectives {
namespace {

constexpr std::uint8_t kCopied = 1;
constexpr std::uint8_t kRead = 2;

std::string_view unsupported(const Problem& /*problem*/, const Topology& topology) {
  return topology.all_mapped() ? "" : "it needs memory that all ranks have mapped";
}

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const auto bytes = static_cast<double>(problem.bytes());
  return 2 * model.mapped.latency_us + bytes / model.copy_bytes_per_us +
         (topology.size - 1) * bytes / model.mapped.bytes_per_us;
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  const int me = topology.rank;
  const int root = problem.root;
  const bool inlined = problem.bytes() <= limits.inline_bytes;
  const std::int64_t chunk_bytes = limits.stage_bytes() / problem.element() * problem.element();
  const std::int64_t chunks = std::max<std::int64_t>(1, (problem.bytes() + chunk_bytes - 1) / chunk_bytes);
  const auto place = [&](int r, const Chunk& c) { return inlined ? inline_payload(r) : bounce(r, c.index, 0); };
  // Only the root reads a bounce buffer.
  const auto source = [&](int r, const Chunk& c) { return inlined ? place(r, c) : owned(place(r, c)); };
  ScheduleBuilder b;
  // Waits until the root has read a chunk, the first time for its header too: that one is compared.
  bool seen = false;
  const auto wait_for_root = [&](std::int64_t chunk) {
    if (!seen) {
      b.wait({{kHeaderFlag, static_cast<std::uint16_t>(root), 0}});
      seen = true;
    }
    b.wait({{kRead, static_cast<std::uint16_t>(root), static_cast<std::int32_t>(chunk)}});
  };
  b.for_chunks(
      problem.bytes(), chunk_bytes, 2,
      [&](const Chunk& c) {
        const std::uint8_t copied = c.index == 0 ? kHeaderFlag : kCopied;
        if (me != root) {
          b.copy(input(c.offset, c.stride), {place(me, c)}, c.bytes).signal(me, copied, c.index);
          if (c.index > 0 && c.index + 1 < chunks) {
            wait_for_root(c.index - 1);
          }
          return;
        }
        if (c.index == 0) {
          b.signal(me, kHeaderFlag, 0);
        }
        std::vector<FlagRef> flags;
        std::vector<Operand> sources;
        for (int r = 0; r < topology.size; ++r) {
          sources.push_back(r == me ? input(c.offset, c.stride) : source(r, c));
          if (r != me) {
            flags.push_back({copied, static_cast<std::uint16_t>(r), c.index});
          }
        }
        b.wait(flags).reduce(sources, {output(c.offset, c.stride)}, c.bytes, true);
        if (c.index + 2 < chunks || (chunks < 3 && topology.size > 2 && c.index == chunks - 1)) {
          b.signal(me, kRead, c.index);
        }
      },
      2);
  // No rank returns before all have entered. With three chunks and more, the signals of the root above imply that; of
  // two ranks the header of the other does.
  if (me != root && chunks < 3) {
    if (topology.size > 2) {
      wait_for_root(chunks - 1);
    } else {
      b.wait({{kHeaderFlag, static_cast<std::uint16_t>(root), 0}});
    }
  }
  return b.build();
}

const RegisterAlgorithm registration({"one_shot", Collective::kReduce,
                                      "Everyone publishes, the root reads all and reduces in rank order.",
                                      "the linear reduce of MPI libraries", Determinism::kCanonical, unsupported, cost,
                                      build});

}  // namespace
}  // namespace collectives
