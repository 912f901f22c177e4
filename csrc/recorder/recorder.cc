#include "recorder/recorder.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>

namespace collectives {
namespace {

std::int64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

struct Moment {
  std::uint64_t count = read_counter();
  std::int64_t ns = clock_ns(CLOCK_MONOTONIC);
};
const Moment g_loaded;

// All recorders of this process, for signal handlers, which must not take a lock.
constexpr std::size_t kMostRecorders = 1024;
std::atomic<Recorder*> g_recorders[kMostRecorders];
std::atomic<int> g_readers{0};

// Keeps recorders from being destroyed while it exists.
class Reading {
 public:
  Reading() { g_readers.fetch_add(1, std::memory_order_seq_cst); }
  ~Reading() { g_readers.fetch_sub(1, std::memory_order_seq_cst); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
};

// The readers that were counted are threads of the parent.
void after_fork_in_child() { g_readers.store(0, std::memory_order_relaxed); }

// See Recorder::world(). Counts a new recorder.
int count_world(int rank) {
  static std::mutex mutex;
  static auto* counts = new std::map<int, int>;  // outlives every recorder
  const std::lock_guard guard(mutex);
  return ++(*counts)[rank];
}

// The words of a description are these facts, and behind them the name.
static_assert(std::is_trivially_copyable_v<CallFacts>);

}  // namespace

CounterClock::CounterClock() : now_ns(clock_ns(CLOCK_REALTIME)), count_(read_counter()) {
  const std::int64_t passed = clock_ns(CLOCK_MONOTONIC) - g_loaded.ns;
  const std::uint64_t counted = count_ - g_loaded.count;
  ns_per_count_ = counted == 0 ? 0 : static_cast<double>(passed) / static_cast<double>(counted);
}

std::int64_t CounterClock::nanoseconds_of(std::uint64_t count) const {
  const auto since = static_cast<std::int64_t>(count_ - count);
  return now_ns - static_cast<std::int64_t>(static_cast<double>(since) * ns_per_count_);
}

std::uint64_t CounterClock::counts_in(double ns) const {
  return ns_per_count_ == 0 ? 0 : static_cast<std::uint64_t>(ns / ns_per_count_);
}

Recorder::Recorder(int rank, int size) : rank_(rank), size_(size), world_(count_world(rank)) {
  // Zeroed pages, which take up memory only once they are written.
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
  static const int handlers = pthread_atfork(nullptr, nullptr, after_fork_in_child);
  (void)handlers;
  entries_ = static_cast<Entry*>(memory);
  descriptions_ = reinterpret_cast<Description*>(entries_ + kEntries);
  for (std::atomic<Recorder*>& place : g_recorders) {
    Recorder* none = nullptr;
    if (place.compare_exchange_strong(none, this, std::memory_order_seq_cst)) {
      break;
    }
  }
}

Recorder::~Recorder() {
  for (std::atomic<Recorder*>& place : g_recorders) {
    Recorder* own = this;
    if (place.compare_exchange_strong(own, nullptr, std::memory_order_seq_cst)) {
      break;
    }
  }
  // A signal handler on another thread may be reading. One on this thread returns before this loop goes on.
  while (g_readers.load(std::memory_order_seq_cst) != 0) {
    std::this_thread::yield();
  }
  munmap(entries_, kBytes);
}

void Recorder::for_each(void (*fn)(const Recorder& recorder, void* argument), void* argument) {
  const Reading reading;
  for (const std::atomic<Recorder*>& place : g_recorders) {
    if (const Recorder* recorder = place.load(std::memory_order_seq_cst); recorder != nullptr) {
      fn(*recorder, argument);
    }
  }
}

void Recorder::describe(Recording& call, const CallFacts& facts, std::string_view name) {
  std::uint64_t words[kWords] = {};
  static_assert(sizeof facts + Recorded::kNameBytes <= sizeof words);
  std::memcpy(words, &facts, sizeof facts);
  std::size_t length = std::min(name.size(), Recorded::kNameBytes - 1);
  // Do not cut a character of UTF-8 in two.
  while (length < name.size() && length > 0 && (static_cast<unsigned char>(name[length]) & 0xc0) == 0x80) {
    --length;
  }
  std::memcpy(reinterpret_cast<char*>(words) + sizeof facts, name.data(), length);
  const std::uint64_t number = descriptions_made_++;
  Description& description = descriptions_[number % kDescriptions];
  description.version.store(2 * number + 1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < kWords; ++i) {
    description.words[i].store(words[i], std::memory_order_release);
  }
  description.version.store(2 * number + 2, std::memory_order_release);
  call.described = number + 1;
}

Recorder::Entry* Recorder::entry_of(const Recording& call) {
  return call.record != 0 && is_kept(call.record - 1) ? &entries_[(call.record - 1) % kEntries] : nullptr;
}

void Recorder::waits(Recording& call) {
  call.timed = true;
  if (Entry* entry = entry_of(call); entry != nullptr) {
    entry->started.store(entry->posted.load(std::memory_order_relaxed), std::memory_order_relaxed);
    entry->what.store(what(call, WorkState::kActive), std::memory_order_relaxed);
  }
}

void Recorder::started(Recording& call) {
  call.timed = true;
  if (Entry* entry = entry_of(call); entry != nullptr) {
    entry->started.store(read_counter(), std::memory_order_relaxed);
    entry->what.store(what(call, WorkState::kActive), std::memory_order_relaxed);
  }
}

void Recorder::ended(Recording& call, WorkState state) {
  if (Entry* entry = entry_of(call); entry != nullptr) {
    if (call.timed || state == WorkState::kFailed) {
      entry->ended.store(read_counter(), std::memory_order_relaxed);
    }
    entry->what.store(what(call, state), std::memory_order_relaxed);
  }
}

bool Recorder::read(std::uint64_t number, Recorded* recorded) const {
  if (!is_kept(number)) {
    return false;
  }
  const Entry& entry = entries_[number % kEntries];
  recorded->sequence = entry.sequence.load(std::memory_order_acquire);
  const std::uint64_t what = entry.what.load(std::memory_order_acquire);
  recorded->posted = entry.posted.load(std::memory_order_acquire);
  const auto since = [&](std::uint64_t count) { return count >= recorded->posted ? count : 0; };
  recorded->started = since(entry.started.load(std::memory_order_acquire));
  recorded->ended = since(entry.ended.load(std::memory_order_acquire));
  if (!is_kept(number)) {
    return false;
  }
  recorded->state = static_cast<WorkState>(what & ((1 << kStateBits) - 1));
  const std::uint64_t described = what >> kStateBits;
  const Description& description = descriptions_[(described - 1) % kDescriptions];
  std::uint64_t words[kWords];
  const std::uint64_t version = description.version.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < kWords; ++i) {
    words[i] = description.words[i].load(std::memory_order_acquire);
  }
  if (version != 2 * described || description.version.load(std::memory_order_relaxed) != version) {
    return false;
  }
  CallFacts facts;
  std::memcpy(&facts, words, sizeof facts);
  std::memcpy(recorded->name, reinterpret_cast<const char*>(words) + sizeof facts, Recorded::kNameBytes);
  recorded->name[Recorded::kNameBytes - 1] = '\0';
  recorded->algorithm = facts.algorithm;
  recorded->bytes = facts.bytes;
  recorded->communicator = facts.communicator;
  recorded->peer = facts.peer;
  recorded->tag = facts.tag;
  recorded->root = facts.root;
  recorded->tensors = facts.tensors;
  recorded->collective = facts.collective;
  recorded->op = facts.op;
  recorded->dtype = facts.dtype;
  recorded->sending = facts.sending;
  return true;
}

}  // namespace collectives
