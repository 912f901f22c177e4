// The recorder: a ring of the last collectives and messages of one rank, with their times and outcomes.
//
// It is always on, so writing has to cost next to nothing: an entry is one cache line, written by the thread that holds
// the lock of the engine, with one read of the time-stamp counter. Equal calls share a description of what they have in
// common (collective, lengths, name). Readers take no lock and may be signal handlers. A reader finds out afterwards
// whether an entry was overwritten meanwhile: by the number of calls, which is published after the entry, since the
// ring has more entries than calls that are kept. A description has a version for the same purpose.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/types.h"
#include "memory/domain.h"

namespace collectives {

// A counter of time that costs little to read; CounterClock converts it.
inline std::uint64_t read_counter() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  std::uint64_t count = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// Converts counter values to times, by comparing counter and clock when the library was loaded and now.
struct CounterClock {
  CounterClock();
  // Nanoseconds since 1970 of a value of the counter.
  std::int64_t nanoseconds_of(std::uint64_t count) const;
  // The counts that make so many nanoseconds; 0 where that is not known yet.
  std::uint64_t counts_in(double ns) const;
  std::int64_t now_ns;

 private:
  std::uint64_t count_;
  double ns_per_count_;
};

// A record as a reader gets it. Counter values are 0 where there are none.
struct Recorded {
  static constexpr std::size_t kNameBytes = 48;
  std::uint64_t sequence = 0;
  std::uint64_t posted = 0;
  std::uint64_t started = 0;  // only of calls that had to wait or are asynchronous
  std::uint64_t ended = 0;    // of these, and of calls that failed
  WorkState state = WorkState::kQueued;
  std::uint32_t communicator = 0;
  Collective collective = Collective::kBarrier;
  Op op = Op::kSum;
  DType dtype = DType::kFloat32;
  bool sending = false;    // messages
  std::int32_t peer = -1;  // of a message; below 0 while it is not known
  std::int32_t tag = 0;
  std::int32_t root = 0;
  std::uint32_t tensors = 0;
  std::int64_t bytes = 0;
  const char* algorithm = nullptr;  // static; nullptr: none
  char name[kNameBytes] = {};       // truncated, and ended by 0

  bool is_message() const { return collective == Collective::kMessage; }
  std::int64_t elements() const { return bytes / static_cast<std::int64_t>(size_of(dtype)); }
};

// What equal calls have in common, besides their name.
struct CallFacts {
  const char* algorithm = nullptr;  // static; nullptr: none
  std::int64_t bytes = 0;
  std::uint32_t communicator = 0;
  std::int32_t peer = -1;
  std::int32_t tag = 0;
  std::int32_t root = 0;
  std::uint32_t tensors = 0;
  Collective collective = Collective::kBarrier;
  Op op = Op::kSum;
  DType dtype = DType::kFloat32;
  bool sending = false;
};

// Kept by a call: where its record is.
struct Recording {
  std::uint64_t sequence = 0;
  std::uint64_t described = 0;  // 1 + the number of the description; 0: none
  std::uint64_t record = 0;     // 1 + the number of the entry; 0: none
  bool timed = false;           // start and end are recorded
};

class Recorder {
 public:
  static constexpr std::uint64_t kKept = 1000;

  // rank, size: in the world.
  Recorder(int rank, int size);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // How many recorders of this rank there have been in this process, with this one: each init() makes one.
  int world() const { return world_; }

  // Whether describe() has to be called before posted(): there is no description, or it may be overwritten soon.
  bool needs_description(const Recording& call) const {
    return call.described == 0 || descriptions_made_ - call.described >= kEntries;
  }
  void describe(Recording& call, const CallFacts& facts, std::string_view name);

  // Makes the entry of a call.
  void posted(Recording& call) {
    const std::uint64_t number = next_.load(std::memory_order_relaxed);
    Entry& entry = entries_[number % kEntries];
    // Release stores, which are plain ones on x86: a reader that sees one of them also sees the number of calls before.
    entry.sequence.store(call.sequence, std::memory_order_release);
    entry.what.store(what(call, WorkState::kQueued), std::memory_order_release);
    entry.posted.store(read_counter(), std::memory_order_release);
    call.record = number + 1;
    call.timed = false;
    next_.store(number + 1, std::memory_order_release);
    __builtin_prefetch(&entries_[(number + 1) % kEntries], 1);
  }
  void done(Recording& call) {
    if (call.timed) [[unlikely]] {
      ended(call, WorkState::kDone);
    } else {
      entries_[(call.record - 1) % kEntries].what.store(what(call, WorkState::kDone), std::memory_order_relaxed);
    }
  }
  // The call was started when it was posted and has to wait now. Does not read the counter again.
  void waits(Recording& call);
  // The call is started, or has ended.
  void started(Recording& call);
  void ended(Recording& call, WorkState state);

  // Counts between the last two calls.
  std::uint64_t interval() const {
    const std::uint64_t count = next_.load(std::memory_order_relaxed);
    return entries_[(count - 1) % kEntries].posted.load(std::memory_order_relaxed) -
           entries_[(count - 2) % kEntries].posted.load(std::memory_order_relaxed);
  }

  // How many calls there have been, and the record of call `number`, from 0; false when it has been overwritten.
  std::uint64_t count() const { return next_.load(std::memory_order_acquire); }
  bool read(std::uint64_t number, Recorded* recorded) const;

  // Calls fn for all recorders of this process, also from a signal handler.
  static void for_each(void (*fn)(const Recorder& recorder, void* argument), void* argument);

 private:
  static constexpr std::uint64_t kEntries = 1024;
  // An entry refers to one of the kEntries descriptions that were the latest when it was made. It lives for kEntries
  // calls, each of which makes at most one description more.
  static constexpr std::uint64_t kDescriptions = 2 * kEntries;

  struct alignas(kCacheLine) Entry {
    std::atomic<std::uint64_t> sequence;
    std::atomic<std::uint64_t> what;
    std::atomic<std::uint64_t> posted;
    // Values less than `posted` are left over from an earlier call in this entry and mean none.
    std::atomic<std::uint64_t> started;
    std::atomic<std::uint64_t> ended;
  };
  // An entry's word `what`: the number of the description, and the state in the low bits.
  static constexpr int kStateBits = 2;
  static std::uint64_t what(const Recording& call, WorkState state) {
    return call.described << kStateBits | static_cast<std::uint64_t>(state);
  }
  static constexpr std::size_t kWords = 12;
  struct alignas(kCacheLine) Description {
    std::atomic<std::uint64_t> version;
    std::atomic<std::uint64_t> words[kWords];
  };

  Entry* entry_of(const Recording& call);
  // Whether call `number` is in its entry: it has been made, and its entry is not used again yet.
  bool is_kept(std::uint64_t number) const {
    const std::uint64_t count = next_.load(std::memory_order_acquire);
    return number < count && count - number < kEntries;
  }

  int rank_;
  int size_;
  int world_;
  std::atomic<std::uint64_t> next_{0};
  std::uint64_t descriptions_made_ = 0;
  static constexpr std::size_t kBytes = kEntries * sizeof(Entry) + kDescriptions * sizeof(Description);
  Entry* entries_;
  Description* descriptions_;
};

}  // namespace collectives
