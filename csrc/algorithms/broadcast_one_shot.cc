// one_shot broadcast: the root publishes, everyone reads.
//
// Nobody returns before all have entered (so that a disagreement is an error on every rank): every rank awaits every
// header, in one step, beside the root's data.
//
//   private, mapped    the root copies chunk k into its box once all have read chunk k - 2.
//   symmetric, mapped  everyone copies straight from the root's array; the root returns when all have.
//   message            tokens to the root, then the whole buffer to everyone.
//
// Source: the linear broadcast of MPI libraries.

#include <vector>

#include "core/algorithm.h"

namespace collectives {
namespace {

constexpr std::uint8_t kCopied = 1;
constexpr std::uint8_t kRead = 2;

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const auto bytes = static_cast<double>(problem.bytes());
  if (topology.all_mapped()) {
    return model.mapped.latency_us + bytes / model.copy_bytes_per_us + bytes / model.mapped.bytes_per_us;
  }
  return 2 * model.message.latency_us + (topology.size - 1) * bytes / model.message.bytes_per_us;
}

std::vector<FlagRef> of_others(int me, int size, std::uint8_t flag, std::int32_t chunk) {
  std::vector<FlagRef> flags;
  for (int r = 0; r < size; ++r) {
    if (r != me) {
      flags.push_back({flag, static_cast<std::uint16_t>(r), chunk});
    }
  }
  return flags;
}

Schedule build_symmetric(const Problem& problem, const Topology& topology) {
  const int me = topology.rank;
  const int size = topology.size;
  ScheduleBuilder b;
  if (me == problem.root) {
    b.signal(me, kHeaderFlag, 0).wait(of_others(me, size, kHeaderFlag, 0));
    b.wait(of_others(me, size, kRead, 0));
    b.copy(input(0), {output(0)}, problem.bytes());
  } else {
    b.signal(me, kHeaderFlag, 0).wait(of_others(me, size, kHeaderFlag, 0));
    b.copy(peer_input(problem.root, 0), {output(0)}, problem.bytes()).signal(me, kRead, 0);
  }
  Schedule schedule = b.build();
  schedule.chunks = 1;
  return schedule;
}

Schedule build_private(const Problem& problem, const Topology& topology, const Limits& limits) {
  const int me = topology.rank;
  const int size = topology.size;
  const int root = problem.root;
  const bool inlined = problem.bytes() <= limits.inline_bytes;
  const std::int64_t chunk_bytes = limits.stage_bytes() / problem.element() * problem.element();
  const std::int64_t chunks = std::max<std::int64_t>(1, (problem.bytes() + chunk_bytes - 1) / chunk_bytes);
  ScheduleBuilder b;
  const auto place = [&](const Chunk& c) { return inlined ? inline_payload(root) : box(root, c.index, 0); };
  b.for_chunks(
      problem.bytes(), chunk_bytes, 3,
      [&](const Chunk& c) {
        if (me == root) {
          if (c.index == 2) {
            b.wait(of_others(me, size, kHeaderFlag, 0));
          }
          if (c.index >= 2) {
            b.wait(of_others(me, size, kRead, c.index - 2));
          }
          b.copy(input(c.offset, c.stride), {place(c)}, c.bytes);
          b.signal(me, c.index == 0 ? kHeaderFlag : kCopied, c.index);
          return;
        }
        if (c.index == 0) {
          b.signal(me, kHeaderFlag, 0);
          // From the third chunk on the root has seen all headers itself.
          b.wait(chunks < 3 ? of_others(me, size, kHeaderFlag, 0)
                            : std::vector<FlagRef>{{kHeaderFlag, static_cast<std::uint16_t>(root), 0}});
        } else {
          b.wait({{kCopied, static_cast<std::uint16_t>(root), c.index}});
        }
        // Of two ranks the other one is the only reader of the box.
        const Operand source = size == 2 && !inlined ? taken(place(c)) : place(c);
        b.copy(source, {output(c.offset, c.stride)}, c.bytes);
        // Nobody waits for the last two chunks to be read: the engine guards slots between collectives.
        if (c.index + 2 < chunks) {
          b.signal(me, kRead, c.index);
        }
      },
      2);
  if (me == root) {
    if (chunks < 3) {
      b.wait(of_others(me, size, kHeaderFlag, 0));
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
