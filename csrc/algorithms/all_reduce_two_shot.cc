// two_shot all-reduce: reduce your own part, then gather the others'.
//
// The buffer is split into n parts, part r belongs to rank r. Phase 1 brings all contributions to part r to rank r,
// which reduces them in rank order; phase 2 brings the reduced parts to every rank. 2 (n-1)/n S bytes per rank in each
// direction, two synchronisations.
//
// private, mapped: migrating bounce buffers. Each rank copies the parts that belong to others into its own bounce
// buffer. The owner of a part reduces it and writes the result *into those same buffers*, from which their ranks read
// it back. Lines thus move between caches while dirty; the classic scheme, in which a rank writes lines that peers have
// only read, pays an ownership upgrade per line (2 to 4 times slower). Longer buffers go chunk by chunk through a
// pipeline of three stages: while others reduce a chunk, a rank fills its bounce buffer with the next and reads back
// the one before. A rank reads its own bounce buffer last, so reuse of a slot within the collective needs no flag.
//
// symmetric, mapped: push. Each rank reduces its part straight from all inputs and stores the result into all outputs.
//
// message: contributions are sent, reduced as they arrive (two ranks) or from scratch memory, and results sent back.
// Longer buffers go chunk by chunk, so that nothing is fetched from memory twice; the results of one chunk travel with
// the contributions to the next.
//
// Source: reduce-scatter by direct exchange plus all-gather (Rabenseifner 2004); the name is MSCCL++'s. The migrating
// bounce buffers are this library's.

#include <algorithm>
#include <vector>

#include "schedule/algorithm.h"

namespace collectives {
namespace {

constexpr std::uint8_t kCopied = 1;
constexpr std::uint8_t kReduced = 2;

// Of ranks that take turns on their cores, see chunk_bytes(). As measured with 4 ranks on 2 cores.
constexpr std::int64_t kLeastTurn = 64 << 10;
constexpr std::int64_t kTurnUnit = 4 << 10;

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const auto bytes = static_cast<double>(problem.bytes());
  const LinkCost link = model.slowest(topology);
  const double share = static_cast<double>(topology.size - 1) / topology.size;
  if (problem.memory == MemoryKind::kSymmetric && topology.all_mapped()) {
    return 2 * link.latency_us + bytes / link.bytes_per_us;
  }
  if (topology.all_mapped()) {
    return 2.2 * link.latency_us + 2 * share * bytes / link.bytes_per_us;
  }
  return link.latency_us * (2 + 0.6 * (topology.size - 2)) + 2 * share * bytes / link.bytes_per_us;
}

FlagRef flag_of(int rank, std::uint8_t flag, const Chunk& c) {
  const bool header = flag == kCopied && c.index == 0;
  return {header ? kHeaderFlag : flag, static_cast<std::uint16_t>(rank), c.index};
}

// The stages of a chunk's way through the bounce buffers.
class BounceBuffers {
 public:
  BounceBuffers(ScheduleBuilder& b, const Problem& problem, const Topology& topology)
      : b_(b), element_(problem.element()), me_(topology.rank), size_(topology.size) {}

  // What belongs to others goes into the own bounce buffer.
  void fill(const Chunk& c) {
    for (const Part& p : others(c)) {
      b_.copy(input(c.offset + p.offset, c.stride), {bounce(me_, c.index, p.offset)}, p.bytes);
    }
    if (c.index == 0 || part(c, me_).bytes < c.bytes) {
      b_.signal(me_, c.index == 0 ? kHeaderFlag : kCopied, c.index);
    }
  }

  // The own part, from and to the bounce buffers of the others.
  void reduce(const Chunk& c) {
    const Part mine = part(c, me_);
    if (mine.bytes == 0) {
      return;
    }
    std::vector<FlagRef> copied;
    std::vector<Operand> sources;
    std::vector<Operand> destinations{output(c.offset + mine.offset, c.stride)};
    for (int r = 0; r < size_; ++r) {
      if (r == me_) {
        sources.push_back(input(c.offset + mine.offset, c.stride));
        continue;
      }
      copied.push_back(flag_of(r, kCopied, c));
      sources.push_back(bounce(r, c.index, mine.offset));
      destinations.push_back(bounce(r, c.index, mine.offset));
    }
    b_.wait(copied).reduce(sources, destinations, mine.bytes, true).signal(me_, kReduced, c.index);
  }

  // What others have reduced, out of the own bounce buffer.
  void drain(const Chunk& c) {
    std::vector<FlagRef> reduced;
    for (int r = 0; r < size_; ++r) {
      if (r == me_ || part(c, r).bytes == 0) {
        continue;
      }
      if (c.index == 0 && part(c, me_).bytes == 0) {
        reduced.push_back(flag_of(r, kCopied, c));  // the header comes before any other flag, so that it is compared
      }
      reduced.push_back(flag_of(r, kReduced, c));
    }
    b_.wait(reduced);
    for (const Part& p : others(c)) {
      b_.copy(bounce(me_, c.index, p.offset), {output(c.offset + p.offset, c.stride)}, p.bytes);
    }
  }

 private:
  Part part(const Chunk& c, int rank) const { return part_of(c.bytes, element_, size_, rank); }

  // What belongs to others lies before and behind the own part.
  std::vector<Part> others(const Chunk& c) const {
    const Part mine = part(c, me_);
    const std::int64_t end = mine.offset + mine.bytes;
    std::vector<Part> parts{{0, mine.offset}, {end, c.bytes - end}};
    std::erase_if(parts, [](const Part& p) { return p.bytes == 0; });
    return parts;
  }

  ScheduleBuilder& b_;
  std::int64_t element_;
  int me_;
  int size_;
};

// The bytes that go through a slot at a time. Smaller chunks mean more meetings; but ranks that take turns on a core
// wait for a turn at every meeting, unless they have another chunk to go on with.
std::int64_t chunk_bytes(const Problem& problem, const Topology& topology, const Limits& limits) {
  std::int64_t bytes = std::min(limits.slot_bytes, Limits::kSlotBytes);
  if (topology.crowded()) {
    bytes = limits.slot_bytes;
    const std::int64_t half = (problem.bytes() / 2 + kTurnUnit - 1) / kTurnUnit * kTurnUnit;
    bytes = std::min(bytes, std::max(half, kLeastTurn));
  }
  return bytes / problem.element() * problem.element();
}

Schedule build_private(const Problem& problem, const Topology& topology, const Limits& limits) {
  ScheduleBuilder b;
  BounceBuffers buffers(b, problem, topology);
  const std::int64_t chunk = chunk_bytes(problem, topology, limits);
  const auto fill = [&](const Chunk& c) { buffers.fill(c); };
  const auto reduce = [&](const Chunk& c) { buffers.reduce(c); };
  const auto drain = [&](const Chunk& c) { buffers.drain(c); };
  if (limits.slots > 2) {  // three chunks are in their slots at a time
    b.for_chunks_in_stages(problem.bytes(), chunk, {{0, fill}, {1, reduce}, {2, drain}});
  } else {
    b.for_chunks(problem.bytes(), chunk, 1, [&](const Chunk& c) {
      fill(c);
      reduce(c);
      drain(c);
    });
  }
  return b.build();
}

Schedule build_symmetric(const Problem& problem, const Topology& topology) {
  const int me = topology.rank;
  const int size = topology.size;
  ScheduleBuilder b;
  b.signal(me, kHeaderFlag, 0);
  const Part mine = part_of(problem.bytes(), problem.element(), size, me);
  std::vector<FlagRef> entered;
  std::vector<FlagRef> done;
  std::vector<Operand> sources;
  std::vector<Operand> destinations;
  for (int r = 0; r < size; ++r) {
    sources.push_back(r == me ? input(mine.offset) : peer_input(r, mine.offset));
    destinations.push_back(r == me ? output(mine.offset) : peer_output(r, mine.offset));
    if (r == me) {
      continue;
    }
    const bool owns = part_of(problem.bytes(), problem.element(), size, r).bytes > 0;
    if (mine.bytes > 0 || owns) {
      entered.push_back({kHeaderFlag, static_cast<std::uint16_t>(r), 0});
    }
    if (owns) {
      done.push_back({kReduced, static_cast<std::uint16_t>(r), 0});
    }
  }
  b.wait(entered);
  if (mine.bytes > 0) {
    b.reduce(sources, destinations, mine.bytes, true).signal(me, kReduced, 0);
  }
  b.wait(done);
  Schedule schedule = b.build();
  schedule.chunks = 1;
  return schedule;
}

// The stages of a chunk's way over links.
class Messages {
 public:
  Messages(ScheduleBuilder& b, const Problem& problem, const Topology& topology, std::int64_t chunk_bytes)
      : b_(b), element_(problem.element()), me_(topology.rank), size_(topology.size) {
    for (int i = 1; i < size_; ++i) {
      others_.push_back((me_ + i) % size_);  // every rank starts with another peer, so that none is flooded first
    }
    if (size_ > 2) {
      // Of the shorter chunk at the end the own part may be the longest.
      const auto own = [&](std::int64_t bytes) { return part_of(bytes, element_, size_, me_).bytes; };
      slot_ = std::max(own(std::min(chunk_bytes, problem.bytes())), own(problem.bytes() % chunk_bytes));
      received_ = b_.scratch(slot_ * (size_ - 1));
    }
  }

  // What belongs to others goes to them.
  void contribute(const Chunk& c) {
    for (const int r : others_) {
      if (const Part theirs = part(c, r); theirs.bytes > 0) {
        b_.send(r, input(c.offset + theirs.offset, c.stride), theirs.bytes);
      }
    }
  }

  // The contributions of the others to the own part.
  void gather(const Chunk& c) {
    const Part mine = part(c, me_);
    if (mine.bytes == 0) {
      return;
    }
    if (size_ == 2) {  // what arrives is reduced as it arrives
      b_.receive_reduce(others_[0], input(c.offset + mine.offset, c.stride), output(c.offset + mine.offset, c.stride),
                        mine.bytes, true, me_ == 0);
    } else {
      for (const int r : others_) {
        b_.receive(r, contribution(r), mine.bytes);
      }
    }
    b_.await();
  }

  // The sum of the own part goes to the others.
  void publish(const Chunk& c) {
    const Part mine = part(c, me_);
    if (mine.bytes == 0) {
      return;
    }
    const Operand sum = output(c.offset + mine.offset, c.stride);
    if (size_ > 2) {
      std::vector<Operand> sources;
      for (int r = 0; r < size_; ++r) {
        sources.push_back(r == me_ ? input(c.offset + mine.offset, c.stride) : contribution(r));
      }
      b_.reduce(sources, {sum}, mine.bytes, true);
    }
    for (const int r : others_) {
      b_.send(r, sum, mine.bytes);
    }
  }

  // The sums of the others' parts.
  void collect(const Chunk& c) {
    for (const int r : others_) {
      if (const Part theirs = part(c, r); theirs.bytes > 0) {
        b_.receive(r, output(c.offset + theirs.offset, c.stride), theirs.bytes);
      }
    }
  }

 private:
  Part part(const Chunk& c, int rank) const { return part_of(c.bytes, element_, size_, rank); }

  // Where that of rank r is kept until all are there.
  Operand contribution(int r) const { return scratch_at(received_ + (r < me_ ? r : r - 1) * slot_); }

  ScheduleBuilder& b_;
  std::int64_t element_;
  int me_;
  int size_;
  std::vector<int> others_;
  std::int64_t slot_ = 0;  // bytes of a contribution
  std::int64_t received_ = 0;
};

Schedule build_message(const Problem& problem, const Topology& topology, const Limits& limits) {
  ScheduleBuilder b;
  const std::int64_t chunk = limits.exchange_bytes() / problem.element() * problem.element() * topology.size;
  Messages messages(b, problem, topology, chunk);
  // In a round, ranks give each other the sums of one chunk and their contributions to the next. Of two ranks both wait
  // for what the other sends in this very round: the fewer bytes are under way, the more of them stay in caches. More
  // ranks wait for what was sent in the round before: while they reduce, nothing else would be under way.
  const int late = topology.size > 2 ? 1 : 0;  // rounds
  b.for_chunks_in_stages(problem.bytes(), chunk,
                         {{1 + late, [&](const Chunk& c) { messages.publish(c); }},
                          {0, [&](const Chunk& c) { messages.contribute(c); }},
                          {1 + 2 * late, [&](const Chunk& c) { messages.collect(c); }},
                          {late, [&](const Chunk& c) { messages.gather(c); }}});
  b.await();
  return b.build_messages();
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  if (problem.count == 0) {
    return build_schedule("one_shot", problem, topology, limits);
  }
  if (!topology.all_mapped()) {
    return build_message(problem, topology, limits);
  }
  return problem.memory == MemoryKind::kSymmetric ? build_symmetric(problem, topology)
                                                  : build_private(problem, topology, limits);
}

const RegisterAlgorithm registration({"two_shot", Collective::kAllReduce,
                                      "Each rank reduces one part, then all gather the parts.",
                                      "Rabenseifner 2004 (direct exchange); MSCCL++ two-shot all-reduce",
                                      Determinism::kCanonical, unsupported, cost, build});

}  // namespace
}  // namespace collectives
