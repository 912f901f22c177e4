// one_shot broadcast: the root publishes, all others read.
//
// No rank returns before all have entered (so that a disagreement is an error on every rank): every rank awaits every
// header, in one step, beside the root's data.
//
//   private, mapped    the root copies chunk k into its bounce buffer once all have read chunk k - slots.
//   symmetric, mapped  every rank copies straight from the root's array; the root returns when all have.
//   message            tokens to the root, then the buffer in one message to every rank.
//
// Source: the linear broadcast of MPI libraries.

#include <algorithm>
#include <vector>

#include "schedule/algorithm.h"

namespace collectives {
namespace {

constexpr std::uint8_t kCopied = 1;
constexpr std::uint8_t kRead = 2;
constexpr std::int64_t kStages = 8;  // at least, where chunks are longer than the least
constexpr std::int64_t kLeastStage = 16 << 10;
constexpr std::int64_t kLine = 64;

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const auto bytes = static_cast<double>(problem.bytes());
  if (topology.all_mapped()) {
    return model.mapped.latency_us + bytes / model.copy_bytes_per_us + bytes / model.mapped.bytes_per_us;
  }
  return 2 * model.message.latency_us + (topology.size - 1) * bytes / model.message.bytes_per_us;
}

Schedule build_symmetric(const Problem& problem, const Topology& topology) {
  const int me = topology.rank;
  const int size = topology.size;
  ScheduleBuilder b;
  if (me == problem.root) {
    b.signal(me, kHeaderFlag, 0).wait(flags_of_others(me, size, kHeaderFlag, 0));
    b.wait(flags_of_others(me, size, kRead, 0));
    b.copy(input(0), {output(0)}, problem.bytes());
  } else {
    b.signal(me, kHeaderFlag, 0).wait(flags_of_others(me, size, kHeaderFlag, 0));
    b.copy(peer_input(problem.root, 0), {output(0)}, problem.bytes()).signal(me, kRead, 0);
  }
  Schedule schedule = b.build();
  schedule.chunks = 1;
  return schedule;
}

// Readers wait for the first chunk, and the root is done before they have read the last one. So short buffers go by
// small chunks; but each chunk costs a meeting, which chunks below the least length do not repay. Only a few lengths
// exist, since the layout of slots changes with the length (ScheduleBuilder::pack_slots).
std::int64_t stage_bytes(const Problem& problem, const Limits& limits) {
  std::int64_t bytes = kLeastStage;
  while (2 * bytes * kStages <= problem.bytes()) {
    bytes *= 2;
  }
  return std::min(bytes, limits.stage_bytes());
}

Schedule build_private(const Problem& problem, const Topology& topology, const Limits& limits) {
  const int me = topology.rank;
  const int size = topology.size;
  const int root = problem.root;
  const bool inlined = problem.bytes() <= limits.inline_bytes;
  const std::int64_t chunk_bytes = stage_bytes(problem, limits) / problem.element() * problem.element();
  const std::int64_t chunks = std::max<std::int64_t>(1, (problem.bytes() + chunk_bytes - 1) / chunk_bytes);
  ScheduleBuilder b;
  if (chunks > 1) {
    b.pack_slots((chunk_bytes + kLine - 1) / kLine * kLine);
  }
  const auto place = [&](const Chunk& c) { return inlined ? inline_payload(root) : bounce(root, c.index, 0); };
  const int slots = limits.slots;
  b.for_chunks(
      problem.bytes(), chunk_bytes, slots + 1,
      [&](const Chunk& c) {
        if (me == root) {
          if (c.index == slots) {
            b.wait(flags_of_others(me, size, kHeaderFlag, 0));
          }
          if (c.index >= slots) {
            b.wait(flags_of_others(me, size, kRead, c.index - slots));
          }
          b.copy(input(c.offset, c.stride), {place(c)}, c.bytes);
          b.signal(me, c.index == 0 ? kHeaderFlag : kCopied, c.index);
          return;
        }
        if (c.index == 0) {
          b.signal(me, kHeaderFlag, 0);
          // Of more chunks than slots the root has seen all headers itself before it sends the last.
          b.wait(chunks <= slots ? flags_of_others(me, size, kHeaderFlag, 0)
                                 : std::vector<FlagRef>{{kHeaderFlag, static_cast<std::uint16_t>(root), 0}});
        } else {
          b.wait({{kCopied, static_cast<std::uint16_t>(root), c.index}});
        }
        // Of two ranks the other one is the only reader of the bounce buffer.
        const Operand source = size == 2 && !inlined ? owned(place(c)) : place(c);
        b.copy(source, {output(c.offset, c.stride)}, c.bytes);
        // No rank waits until the last chunks have been read: the engine guards slots between collectives.
        if (c.index + slots < chunks) {
          b.signal(me, kRead, c.index);
        }
      },
      slots);
  if (me == root) {
    if (chunks <= slots) {
      b.wait(flags_of_others(me, size, kHeaderFlag, 0));
    }
    b.copy(input(0), {output(0)}, problem.bytes());
  }
  Schedule schedule = b.build();
  schedule.chunks = inlined ? 0 : schedule.chunks;
  return schedule;
}

Schedule build_message(const Problem& problem, const Topology& topology, const Limits& limits) {
  const int me = topology.rank;
  const std::int64_t segment = limits.segment_bytes / problem.element() * problem.element();
  ScheduleBuilder b;
  if (me == problem.root) {
    for (int r = 0; r < topology.size; ++r) {
      if (r != me) {
        b.receive_token(r);
      }
    }
    b.await();
    b.for_chunks(problem.bytes(), segment, 0, [&](const Chunk& c) {
      for (int i = 1; i < topology.size; ++i) {
        b.send((me + i) % topology.size, input(c.offset, c.stride), c.bytes);
      }
    });
    b.copy(input(0), {output(0)}, problem.bytes());
  } else {
    b.send_token(problem.root);
    b.for_chunks(problem.bytes(), segment, 0,
                 [&](const Chunk& c) { b.receive(problem.root, output(c.offset, c.stride), c.bytes); });
    b.await();
  }
  return b.build_messages();
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  if (!topology.all_mapped()) {
    return build_message(problem, topology, limits);
  }
  return problem.memory == MemoryKind::kSymmetric ? build_symmetric(problem, topology)
                                                  : build_private(problem, topology, limits);
}

const RegisterAlgorithm registration({"one_shot", Collective::kBroadcast, "The root publishes and everyone reads.",
                                      "the linear broadcast of MPI libraries", Determinism::kCanonical, unsupported,
                                      cost, build});

}  // namespace
}  // namespace collectives
