#include "schedule/exchange.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace collectives {
namespace {

constexpr std::uint8_t kCopied = 1;
constexpr std::uint8_t kRead = 2;
constexpr std::int64_t kLine = 64;
constexpr int kSlotsOfPipeline = 4;
// The most bytes of all inputs and outputs together for which ranks read each other. What the kernel copies goes
// through the caches; where these cannot hold it all, writing past them is faster (cpu/streaming.h).
constexpr std::int64_t kMostRead = 32 << 20;

// What a rank sends at a time, at least: more than a fast port holds until the first byte is there (100 Gbit/s, 40 us).
constexpr std::int64_t kInFlight = 1 << 20;

// Of all parts, in bytes.
struct Extent {
  std::int64_t longest = 0;     // between two ranks
  std::int64_t most_given = 0;  // by one rank
  std::int64_t together = 0;    // all inputs and outputs
  std::int64_t most_readers = 0;
};

// Where there is a length for each rank: what it gives to each reader, or gets from each writer.
Extent extent_of_counts(const Problem& problem, int size) {
  std::int64_t longest = 0;
  std::int64_t longest_to_travel = 0;  // without what a root keeps
  std::int64_t travelling = 0;         // parts of any length
  for (int r = 0; r < size; ++r) {
    const std::int64_t count = problem.counts[static_cast<std::size_t>(r)];
    longest = std::max(longest, count);
    if (size > 1 && !(has_root(problem.collective) && r == problem.root)) {
      longest_to_travel = std::max(longest_to_travel, count);
      travelling += count > 0 ? 1 : 0;
    }
  }
  const std::int64_t element = problem.element();
  const std::int64_t all = problem.bytes();
  const std::int64_t any = travelling > 0 ? 1 : 0;
  switch (problem.collective) {
    case Collective::kAllGather:
      return {longest_to_travel * element, longest * element, all + size * all, any * (size - 1)};
    case Collective::kGather:
      return {longest_to_travel * element, longest * element, 2 * all, any};
    case Collective::kScatter:
      return {longest_to_travel * element, all, 2 * all, travelling};
    default:  // reduce_scatter: a rank whose own part is empty has one reader more than others
      return {longest_to_travel * element, all, size * all + all, travelling - (travelling == size ? 1 : 0)};
  }
}

Extent extent_of(const Problem& problem, int size) {
  const std::int64_t element = problem.element();
  if (problem.own != nullptr) {
    const PartsRow& all = problem.own->all;
    return {all.longest_to_another * element, all.most_given * element, 2 * all.total * element, all.readers};
  }
  if (problem.collective == Collective::kAllToAll && problem.counts.size() == 1) {
    const std::int64_t part = problem.counts[0] * element;
    return {part, size * part, 2 * std::int64_t{size} * size * part, part > 0 ? size - 1 : 0};
  }
  if (problem.collective != Collective::kAllToAll) {
    return extent_of_counts(problem, size);
  }
  Extent extent;
  for (int from = 0; from < size; ++from) {
    std::int64_t readers = 0;
    for (int to = 0; to < size; ++to) {
      if (const std::int64_t bytes = problem.part_bytes(from, to, size); from != to && bytes > 0) {
        extent.longest = std::max(extent.longest, bytes);
        ++readers;
      }
    }
    const std::int64_t given = problem.input_bytes(from, size);
    extent.most_given = std::max(extent.most_given, given);
    extent.together += given + problem.output_bytes(from, size);
    extent.most_readers = std::max(extent.most_readers, readers);
  }
  return extent;
}

}  // namespace

Exchange::Exchange(const Problem& problem, const Topology& topology, const Limits& limits)
    : problem_(problem),
      me_(topology.rank),
      size_(topology.size),
      root_(has_root(problem.collective) ? problem.root : -1),
      shared_(problem.collective == Collective::kAllGather),
      even_(problem.even()),
      pipelined_(even_ && root_ < 0 && problem.own == nullptr && std::ranges::count(problem.counts, 0) == 0 &&
                 limits.slots >= kSlotsOfPipeline) {
  const std::int64_t element = problem.element();
  segment_ = std::max(limits.segment_bytes / element, std::int64_t{1}) * element;
  // What goes to all readers alike lies at the beginning.
  const bool alike = shared_ || problem.collective == Collective::kGather;
  // Where all writers, or the root alone, have a part for each reader, they have them at the same places.
  const bool by_reader = problem.collective == Collective::kReduceScatter || problem.collective == Collective::kScatter;
  Place mine;
  for (int r = 0; by_reader && r < me_; ++r) {
    const std::int64_t count = problem.counts[static_cast<std::size_t>(r)];
    mine.offset += count * element;
    mine.readers += count > 0 ? 1 : 0;
  }
  std::int64_t offset = 0;
  Place place;
  for (int r = 0; r < size_; ++r) {
    given_.push_back(place);
    if (by_reader) {
      const bool counted = r < me_ && problem.counts[static_cast<std::size_t>(r)] > 0;  // no rank is its own reader
      gotten_.push_back({mine.offset, mine.readers - (counted ? 1 : 0)});
    } else {
      gotten_.push_back({problem.input_offset(r, me_, size_), problem.readers_before(r, me_, size_)});
    }
    output_offsets_.push_back(problem.collective == Collective::kReduceScatter ? 0 : offset);
    offset += part(r, me_);
    const std::int64_t bytes = part(me_, r);
    place.offset += alike ? 0 : bytes;
    place.readers += r != me_ && bytes > 0 ? 1 : 0;
  }
  const Extent extent = extent_of(problem, size_);
  longest_ = extent.longest;
  inlined_ = extent.most_given <= limits.inline_bytes;
  swaps_ = size_ == 2 && part(0, 1) == part(1, 0) && part(0, 1) > 0 && limits.swap_buffers;
  chooses_ = topology.all_mapped() && !inlined_ && limits.read_bytes > 0 && longest_ >= limits.read_bytes &&
             extent.together <= kMostRead && !reduces(problem.collective);
  const std::int64_t room = limits.stage_bytes() / std::max<std::int64_t>(shared_ ? 1 : extent.most_readers, 1);
  // Readers share no cache line where there is room for it.
  const std::int64_t unit = room >= kLine && kLine % element == 0 ? kLine : element;
  chunk_bytes_ = inlined_ ? std::max<std::int64_t>(longest_, 1) : room / unit * unit;
}

std::int64_t Exchange::piece(int from, int to, const Chunk& c) const {
  return std::clamp<std::int64_t>(part(from, to) - c.offset, 0, chunk_bytes_);
}

// Where in a slot of `from` the bytes for `to` lie: one region for each of its readers, in rank order.
std::int64_t Exchange::region(int from, int to) const {
  const Place& place = from == me_ ? given_[static_cast<std::size_t>(to)] : gotten_[static_cast<std::size_t>(from)];
  return shared_ ? 0 : place.readers * chunk_bytes_;
}

Operand Exchange::place(int from, int to, const Chunk& c) const {
  if (inlined_) {
    Operand operand = inline_payload(from);
    operand.offset = input_offset(from, to);
    return operand;
  }
  Operand operand = bounce(from, c.index, region(from, to));
  if (swaps_) {
    operand = swapped(operand, 1 - from);
  }
  return size_ == 2 || !shared_ ? owned(operand) : operand;
}

// Whether `reader` awaits the signal of `writer` for a chunk: for its data, or because it proves that what `writer`
// read there may be overwritten.
bool Exchange::waits(int reader, int writer, const Chunk& c) const {
  if (with_header(c)) {
    // Every rank awaits every header; but a later signal of the root implies that the root has seen them all.
    return reader == root_ || writer == root_ || !awaits_root_later(reader);
  }
  // No slot is used again before the third chunk.
  return piece(writer, reader, c) > 0 || (c.index > 0 && more(reader, writer, c));
}

bool Exchange::awaits_root_later(int reader) const {
  return root_ >= 0 && (part(root_, reader) > chunk_bytes_ || part(reader, root_) > 2 * chunk_bytes_);
}

void Exchange::publish(ScheduleBuilder& b, const Chunk& c) const {
  for (int to = 0; to < size_; ++to) {
    const std::int64_t bytes = to == me_ ? 0 : piece(me_, to, c);
    if (bytes > 0) {
      Operand destination = place(me_, to, c);
      destination.own = false;
      std::vector<Operand> destinations{destination};
      if (shared_) {
        destinations.push_back(output(output_offset(me_) + c.offset, c.stride));  // while it is in the cache
      }
      b.copy(input(input_offset(me_, to) + c.offset, c.stride), destinations, bytes);
      if (shared_) {
        return;
      }
    }
  }
}

void Exchange::give(ScheduleBuilder& b, const Chunk& c) const {
  publish(b, c);
  bool awaited = with_header(c);
  for (int r = 0; r < size_; ++r) {
    awaited = awaited || (r != me_ && waits(r, me_, c));
  }
  if (awaited) {
    b.signal(me_, with_header(c) ? kHeaderFlag : kCopied, c.index);
  }
}

void Exchange::await_and_get(ScheduleBuilder& b, const Chunk& c, const Get& get) const {
  std::vector<FlagRef> flags;
  bool any = false;
  for (int r = 0; r < size_; ++r) {
    if (r != me_ && waits(me_, r, c)) {
      flags.push_back({with_header(c) ? kHeaderFlag : kCopied, static_cast<std::uint16_t>(r), c.index});
    }
    any = any || (r != me_ && piece(r, me_, c) > 0);
  }
  b.wait(flags);
  if (any) {
    get(b, c);
  }
}

void Exchange::exchange_chunks(ScheduleBuilder& b, const Get& get) const {
  const auto both = [&](const Chunk& c) {
    give(b, c);
    await_and_get(b, c, get);
  };
  if (inlined_) {
    both({0, 0, longest_, 0});
  } else if (pipelined_) {
    b.for_chunks_in_stages(
        longest_, chunk_bytes_,
        {{0, [&](const Chunk& c) { give(b, c); }}, {1, [&](const Chunk& c) { await_and_get(b, c, get); }}});
  } else {
    // Parts of different lengths end in different chunks, so there is nothing to repeat.
    b.for_chunks(longest_, chunk_bytes_, even_ ? 1 : std::numeric_limits<int>::max(), both, even_ ? 1 : 0);
  }
}

Schedule Exchange::through_slots(const Get& get) const {
  ScheduleBuilder b;
  exchange_chunks(b, get);
  return b.build();
}

Schedule Exchange::through_slots() const {
  ScheduleBuilder b;
  if (chooses_) {
    b.signal(me_, kHeaderFlag, 0).choose(flags_of_others(me_, size_, kHeaderFlag, 0));
  }
  exchange_chunks(b, [&](ScheduleBuilder& /*b*/, const Chunk& c) {
    for (int i = 1; i < size_; ++i) {
      const int from = (me_ + i) % size_;
      if (piece(from, c) > 0) {
        b.copy(place(from, c), {output(output_offset(from) + c.offset, c.stride)}, piece(from, c));
      }
    }
  });
  if (!shared_) {
    keep(b);
  }
  if (chooses_) {
    b.otherwise();
    read(b);
  }
  return b.build();
}

// Every rank begins with the next one, so that not all read from the same rank at a time.
void Exchange::read(ScheduleBuilder& b) const {
  std::vector<FlagRef> readers;
  bool reads = false;
  keep(b);
  for (int i = 1; i < size_; ++i) {
    const int other = (me_ + i) % size_;
    if (part(other, me_) > 0) {
      b.read(peer_input(other, input_offset(other, me_)), output(output_offset(other)), part(other, me_));
      reads = true;
    }
    if (part(me_, other) > 0) {
      readers.push_back({kRead, static_cast<std::uint16_t>(other), 0});
    }
  }
  if (reads) {
    b.signal(me_, kRead, 0);
  }
  b.wait(readers);
}

// Long parts go a few at a time: many at once would share the ports of all hosts, and wait there for each other.
Schedule Exchange::by_messages() const {
  ScheduleBuilder b;
  const std::int64_t longest = std::max<std::int64_t>(longest_, 1);
  const bool in_turns = even_ && root_ < 0;
  const int window =
      in_turns ? static_cast<int>(std::clamp<std::int64_t>(kInFlight / longest, 2, std::max(size_, 2))) : size_;
  for (int first = 1; first == 1 || first < size_; first += window) {
    const int end = std::min(first + window, size_);
    for (int i = first; i < end; ++i) {
      send_to(b, (me_ + i) % size_);
    }
    for (int i = first; i < end; ++i) {
      receive_from(b, (me_ + size_ - i) % size_);
    }
    if (first == 1) {
      keep(b);
    }
    b.await();
  }
  return b.build_messages();
}

void Exchange::keep(ScheduleBuilder& b) const {
  if (part(me_, me_) > 0) {
    b.copy(input(input_offset(me_, me_)), {output(output_offset(me_))}, part(me_, me_));
  }
}

void Exchange::send_part(ScheduleBuilder& b, int peer, int to) const {
  if (part(me_, to) == 0) {
    b.send_token(peer);
  } else {
    send_stretch(b, peer, to, 0, part(me_, to));
  }
}

void Exchange::send_stretch(ScheduleBuilder& b, int peer, int to, std::int64_t begin, std::int64_t bytes) const {
  b.for_chunks(bytes, segment_, 0, [&](const Chunk& c) {
    b.send(peer, input(input_offset(me_, to) + begin + c.offset, c.stride), c.bytes);
  });
}

void Exchange::receive_from(ScheduleBuilder& b, int from) const {
  if (part(from, me_) == 0) {
    b.receive_token(from);
  } else {
    receive_stretch(b, from, 0, part(from, me_));
  }
}

void Exchange::receive_stretch(ScheduleBuilder& b, int from, std::int64_t begin, std::int64_t bytes) const {
  b.for_chunks(bytes, segment_, 0, [&](const Chunk& c) {
    b.receive(from, output(output_offset(from) + begin + c.offset, c.stride), c.bytes);
  });
}

}  // namespace collectives
