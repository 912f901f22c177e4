#include "schedule/prefix.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace collectives {
namespace {

constexpr std::uint8_t kDone = 1;

// The flag that says that rank r is done with a chunk.
FlagRef done_of(int r, std::int64_t chunk) {
  return {chunk == 0 ? kHeaderFlag : kDone, static_cast<std::uint16_t>(r), static_cast<std::int32_t>(chunk)};
}

std::int64_t chunks_of(std::int64_t bytes, std::int64_t chunk_bytes) {
  return std::max<std::int64_t>(1, (bytes + chunk_bytes - 1) / chunk_bytes);
}

}  // namespace

Prefix::Prefix(const Problem& problem, const Topology& topology, const Limits& limits)
    : limits_(limits),
      bytes_(problem.bytes()),
      element_(problem.element()),
      me_(topology.rank),
      last_(topology.size - 1),
      exclusive_(problem.collective == Collective::kExscan),
      mapped_(topology.all_mapped()) {}

void Prefix::deliver(ScheduleBuilder& b, const Operand& from, const Chunk& c) const {
  const Operand to = output(c.offset, c.stride);
  if (me_ == (exclusive_ ? 1 : 0)) {
    b.reduce({from}, {to}, c.bytes, true);
  } else {
    b.copy(from, {to}, c.bytes);
  }
}

template <class Place>
void Prefix::fold(ScheduleBuilder& b, const Chunk& c, const Place& place) const {
  const Operand own = input(c.offset, c.stride);
  const Operand to = output(c.offset, c.stride);
  const int end = exclusive_ ? me_ : me_ + 1;  // one behind the last rank that contributes
  if (end == 0) {
    return;
  }
  if (end == 1) {
    deliver(b, exclusive_ ? place(0) : own, c);
    return;
  }
  // In place, the first of several reductions overwrites the own values, but not what was published of them.
  b.reduce({place(0), me_ == 1 ? own : place(1)}, {to}, c.bytes, false);
  for (int r = 2; r < end; ++r) {
    b.reduce({to, place(r)}, {to}, c.bytes, false);
  }
}

double Prefix::cost_of_reading(const Problem& problem, const Topology& topology, const CostModel& model) {
  return model.mapped.latency_us +
         (topology.size - 1) * static_cast<double>(problem.bytes()) / model.shared_bytes_per_us;
}

// Chunk k overwrites the slot of chunk k - slots, so all readers must have combined that one. They have when they
// publish the next.
Schedule Prefix::by_reading() const {
  const bool inlined = bytes_ <= limits_.inline_bytes;
  const std::int64_t chunk_bytes = whole(limits_.stage_bytes());
  const std::int64_t chunks = chunks_of(bytes_, chunk_bytes);
  const int slots = limits_.slots;
  // Nobody but itself reads what the last rank publishes; see fold().
  const bool publishes = me_ < last_ || (!exclusive_ && me_ > 1);
  ScheduleBuilder b;
  b.for_chunks(
      bytes_, chunk_bytes, slots,
      [&](const Chunk& c) {
        const auto place = [&](int r) { return inlined ? inline_payload(r) : bounce(r, c.index, 0); };
        if (c.index >= slots) {
          for (int r = me_ + 1; r <= last_; ++r) {
            b.wait({done_of(r, c.index - slots + 1)});
          }
        }
        if (publishes) {
          b.copy(input(c.offset, c.stride), {place(me_)}, c.bytes);
        }
        // Nobody waits for the last chunks of the last rank.
        if (me_ < last_ || c.index == 0 || c.index <= chunks - slots) {
          const FlagRef own = done_of(me_, c.index);
          b.signal(me_, own.flag, own.chunk);
        }
        for (int r = 0; r < me_; ++r) {
          b.wait({done_of(r, c.index)});
        }
        // No rank returns before all have entered: rank 0 sees all headers before it publishes a second chunk. And a
        // rank that waits for more of another one sees its header first.
        if (c.index == 0 && (me_ == 0 || chunks == 1 || chunks > slots)) {
          for (int r = me_ + 1; r <= last_; ++r) {
            b.wait({done_of(r, 0)});
          }
        }
        fold(b, c, place);
      },
      slots);
  return b.build();
}

// The first chunk comes to the last rank, whose signal ends the call everywhere; the others follow it.
double Prefix::cost_of_pipeline(const Problem& problem, const Topology& topology, const CostModel& model) {
  const auto bytes = static_cast<double>(problem.bytes());
  const LinkCost link = model.slowest(topology);
  const Limits limits;
  const auto most = static_cast<double>(topology.all_mapped() ? limits.stage_bytes() : limits.segment_bytes);
  const double fill = std::min(bytes, most) * (topology.size - 2);
  return topology.size * link.latency_us + (fill + bytes) / link.bytes_per_us;
}

Schedule Prefix::by_pipeline() const { return mapped_ ? pipeline_of_buffers() : pipeline_of_messages(); }

// One flag serves both neighbours: a rank that is done with a chunk has it in its bounce buffer, and has read that of
// the rank below, which may then use the slot again.
Schedule Prefix::pipeline_of_buffers() const {
  const bool inlined = bytes_ <= limits_.inline_bytes;
  const std::int64_t chunk_bytes = whole(limits_.stage_bytes());
  const std::int64_t chunks = chunks_of(bytes_, chunk_bytes);
  const int slots = limits_.slots;
  ScheduleBuilder b;
  b.for_chunks(
      bytes_, chunk_bytes, slots + 1,
      [&](const Chunk& c) {
        const auto place = [&](int r) { return inlined ? inline_payload(r) : bounce(r, c.index, 0); };
        const Operand own = input(c.offset, c.stride);
        const Operand to = output(c.offset, c.stride);
        if (me_ > 0) {
          b.wait({done_of(me_ - 1, c.index)});
        }
        if (me_ < last_ && c.index >= slots) {
          b.wait({done_of(me_ + 1, c.index - slots)});
        }
        if (me_ == 0) {
          b.copy(own, {place(0)}, c.bytes);
        } else {
          const Operand below = inlined ? place(me_ - 1) : owned(place(me_ - 1));  // nobody else reads it
          if (!exclusive_) {
            b.reduce({below, own}, me_ < last_ ? std::vector<Operand>{to, place(me_)} : std::vector<Operand>{to},
                     c.bytes, false);
          } else {
            if (me_ < last_) {
              b.reduce({below, own}, {place(me_)}, c.bytes, false);
            }
            deliver(b, below, c);
          }
        }
        // Nobody waits for the last chunks of the last rank.
        if (me_ < last_ || c.index == 0 || c.index + slots < chunks) {
          const FlagRef flag = done_of(me_, c.index);
          b.signal(me_, flag.flag, flag.chunk);
        }
        if (me_ == 0 && !exclusive_) {
          deliver(b, own, c);
        }
      },
      slots);
  // No rank returns before all have entered, as the last one has when it is done with a chunk. Signals travel down the
  // chain, too, where there are more chunks than slots on the way.
  if (me_ < last_ && chunks - 1 < static_cast<std::int64_t>(last_ - me_) * slots) {
    b.wait({done_of(last_, 0)});
  }
  return b.build();
}

Schedule Prefix::pipeline_of_messages() const {
  const std::int64_t segment = whole(limits_.segment_bytes);
  const bool several = chunks_of(bytes_, segment) > 1;
  ScheduleBuilder b;
  if (me_ == last_) {
    b.for_chunks(bytes_, segment, 1, [&](const Chunk& c) {
      const Operand to = output(c.offset, c.stride);
      if (exclusive_) {
        b.receive(me_ - 1, to, c.bytes);
      } else {
        b.receive_reduce(me_ - 1, input(c.offset, c.stride), to, c.bytes, false);
      }
      // No rank returns before all have entered, as they have when the first segment comes here.
      if (c.index == 0) {
        if (last_ > 1) {
          b.await();
        }
        for (int r = 0; r < last_; ++r) {
          b.send_token(r);
        }
      }
    });
    if (several || last_ == 1) {
      b.await();
    }
    if (exclusive_ && last_ == 1) {
      deliver(b, output(0), {0, 0, bytes_, 0});
    }
    return b.build_messages();
  }
  const std::int64_t slot = exclusive_ && me_ > 0 ? std::min(segment, bytes_) : 0;
  const std::int64_t received = b.scratch(slot);
  const std::int64_t passed_on = b.scratch(slot);
  b.for_chunks(bytes_, segment, 1, [&](const Chunk& c) {
    const Operand own = input(c.offset, c.stride);
    if (me_ == 0) {
      b.send(1, own, c.bytes);
    } else if (!exclusive_) {
      const Operand to = output(c.offset, c.stride);
      b.receive_reduce(me_ - 1, own, to, c.bytes, false).await().send(me_ + 1, to, c.bytes);
    } else {
      b.receive(me_ - 1, scratch_at(received), c.bytes).await();
      if (c.index > 0) {
        b.flush();
      }
      b.reduce({scratch_at(received), own}, {scratch_at(passed_on)}, c.bytes, false);
      b.send(me_ + 1, scratch_at(passed_on), c.bytes);
      deliver(b, scratch_at(received), c);
    }
  });
  b.receive_token(last_).await();
  if (me_ == 0 && !exclusive_) {
    if (bytes_ > 0 && (several || last_ == 1)) {
      b.flush();  // in place, this overwrites what was sent; else the token says that it has arrived
    }
    deliver(b, input(0), {0, 0, bytes_, 0});
  }
  return b.build_messages();
}

std::string_view Prefix::too_long_to_double(const Problem& problem) {
  return problem.bytes() > Limits().segment_bytes ? "it is for arrays of at most 512 KiB" : "";
}

double Prefix::cost_of_doubling(const Problem& problem, const Topology& topology, const CostModel& model) {
  const LinkCost link = model.slowest(topology);
  const double copies = topology.all_mapped() ? 2.0 : 1.0;
  const int rounds = std::bit_width(static_cast<unsigned>(topology.size - 1));
  return rounds * copies * (link.latency_us + static_cast<double>(problem.bytes()) / link.bytes_per_us);
}

// The ranks form a ring. What goes on from the last ranks to the first has no value for a prefix: it is a token, by
// which all learn that all have entered, as in the dissemination barrier. Nothing is sent that is overwritten later, so
// no rank waits for what it has sent.
Schedule Prefix::by_doubling() const {
  const int n = last_ + 1;
  ScheduleBuilder b;
  const auto room = [&] { return scratch_at(b.scratch(bytes_)); };
  bool posted = false;  // a receive that was not awaited
  const auto settle = [&] {
    if (posted) {
      b.await();
    }
    posted = false;
  };
  Operand mine = room();  // what ranks me - distance + 1 to me combine to
  b.copy(input(0), {mine}, bytes_);
  const Operand came = room();
  for (int distance = 1; distance < n; distance *= 2) {
    const bool gives = me_ + distance < n;
    const bool gets = me_ >= distance;
    const bool uses = !exclusive_ && me_ >= distance / 2 && (gives || gets);
    // What came in the round before is used, or tells the next rank of ranks that it does not hear of otherwise.
    if (distance > 1 && (uses || 3 * (distance / 2) < n)) {
      settle();
    }
    const int to = (me_ + distance) % n;
    const int from = (me_ + n - distance) % n;
    gives ? b.send(to, mine, bytes_) : b.send_token(to);
    posted = true;
    if (!gets) {
      b.receive_token(from);
    } else if (!exclusive_) {
      const Operand next = 2 * distance > me_ ? output(0) : room();
      b.receive_reduce(from, mine, next, bytes_, false);
      mine = next;
    } else {
      // The output has what the ranks below combine to, without what comes now.
      const Operand news = distance == 1 ? output(0) : came;
      b.receive(from, news, bytes_);
      if (me_ + 2 * distance < n) {
        const Operand next = room();
        settle();
        b.reduce({news, mine}, {next}, bytes_, false);
        mine = next;
      }
      if (distance > 1) {
        settle();
        b.reduce({news, output(0)}, {output(0)}, bytes_, false);
      }
    }
  }
  settle();
  if (me_ == (exclusive_ ? 1 : 0)) {
    deliver(b, exclusive_ ? output(0) : input(0), {0, 0, bytes_, 0});
  }
  return b.build_messages();
}

}  // namespace collectives
