#include "engine/executor/executor.h"

#include <algorithm>
#include <utility>

#include "cpu/spin.h"
#include "cpu/take.h"
#include "engine/record.h"

namespace collectives {
namespace {

// A call is recorded when it first has to wait, and before any step that is longer than this, or that uses a link:
// until then the others wait for what this rank publishes.
constexpr std::int64_t kShortStep = 16 << 10;

// So often a rank looks in vain at the header of one that has entered at the same time, on a core that shares a cache.
// Of cores that share none, a pause before the first look gains nothing where no lines are made ready.
constexpr int kLooksOfNear = 5;

// Where lines are made ready, looks tell nothing: but short calls that follow each other this fast are between cores
// that share a cache. Whoever has other things to do between calls counts as far from all, which costs little.
constexpr double kBriskNs = 170;

// For ranks on other cores, where ranks outnumber cores: 2.5 us on Zen 4, about what two turns cost.
constexpr int kSpinsForOtherCores = 100;

}  // namespace

Executor::Executor(std::uint32_t communicator, int rank, const Domain* domain, std::vector<Link*> links,
                   Recorder& recorder, HostMemory* turns, std::vector<int> members,
                   std::vector<Reading::Source> readable)
    : communicator_(communicator),
      rank_(rank),
      domain_(domain),
      recorder_(recorder),
      links_(std::move(links)),
      peers_completed_(links_.size(), 0),
      sent_(links_.size(), 0),
      turns_(turns),
      members_(std::move(members)),
      reading_(rank, std::move(readable)),
      brisk_(CounterClock().counts_in(kBriskNs)) {
  reserve_spares();
  for (int r = 0; domain_ != nullptr && r < domain_->size(); ++r) {
    if (r != rank_ && domain_->has(r)) {
      mapped_peers_.push_back(r);
    }
  }
}

void Executor::bind(Work& work) const {
  const Plan& plan = *work.plan;
  if (work.sources.size() < plan.max_operands) {
    work.sources.resize(plan.max_operands);
    work.destinations.resize(plan.max_operands);
    work.cursors.resize(2 * plan.max_operands);
  }
  work.one_piece = work.input.count <= 1 && work.output.count <= 1;
  work.end = static_cast<std::uint32_t>(plan.schedule.steps.size());
  work.find_arrays();
  work.base_of(Region::kBox) = 0;
  work.base_of(Region::kPeerInput) = static_cast<std::uintptr_t>(work.input_heap_offset);
  work.base_of(Region::kPeerOutput) = static_cast<std::uintptr_t>(work.output_heap_offset);
}

// Takes memory, tells the others how this rank is read, publishes a header that no step does: what the calls need that
// do not begin at once.
void Executor::make_ready(Work& work) {
  const Plan& plan = *work.plan;
  if ((plan.schedule.uses_links || plan.schedule.scratch_bytes > 0) && !plan.begins_with_swap) {
    take_memory(work);
  }
  if (plan.schedule.chooses) {
    work.end = static_cast<std::uint32_t>(plan.schedule.steps.size());  // the last run may have ended before
    offer(work);
  }
  if (!plan.signals_header && !mapped_peers_.empty()) {
    signal_header(work, domain_->header(rank_, work.sequence));
  }
}

inline bool Executor::differs(int rank, const Signature& theirs, const Work& work) {
  if (theirs == work.signature) {
    return false;
  }
  mismatched_rank_ = rank;
  mismatched_signature_ = theirs;
  return true;
}

inline Executor::Look Executor::look_header(const Work& work, int member) {
  const HeaderLine& line = domain_->header(member, work.sequence);
  // Acquire: the line was written before its word, and so was whatever the rank had to read before it.
  const std::uint64_t word = line.word.load(std::memory_order_acquire);
  return word >> 8 == work.sequence + 1 ? compare_header(work, member, line, word) : Look::kNotYet;
}

// word: that of the line, which is of this collective.
inline Executor::Look Executor::compare_header(const Work& work, int member, const HeaderLine& line,
                                               std::uint64_t word) {
  peers_completed_[member] = std::max(peers_completed_[member], work.sequence + 1 - (word & 0xff));
  return differs(member, line.signature, work) ? Look::kDiffers : Look::kThere;
}

// Between the header of this rank and its first look for another.
inline void Executor::wait_before_look(const Work& work) const {
  const FirstLook first_look = work.plan->first_look;
  if (first_look == FirstLook::kLate || (first_look == FirstLook::kLateNear && looks_ <= kLooksOfNear)) {
    relax();
  } else if (first_look == FirstLook::kLateByDistance) {
    // Decided before the last pause: whatever comes behind that delays the look.
    if (work.plan->owned_bytes == 0 && !work.plan->schedule.trades && !follows_fast()) {
      relax();  // the rank that is awaited has lines to fill, and this one has none
    }
    relax();
  } else if (first_look == FirstLook::kFenced) {
    fence_loads();
  }
}

// Those that the next call writes if it is like this one, and has not been begun: the others have read what was there.
inline void Executor::own_next_lines(const Work& work) const {
  own_line(&domain_->header(rank_, work.sequence + 1));
  for (std::int64_t i = 0; i < work.plan->owned_bytes; i += kTakeLine) {
    own_line(domain_->box(rank_, work.base + 1) + i);
  }
}

// Looks until the flag is there, or `spins` more looks were in vain.
inline Executor::Look Executor::await(const Work& work, const FlagPlace& flag, bool first, int spins) {
  std::atomic<std::uint64_t>& word = flag.word(work.bases);
  if (flag.is_header && first && spins > 1) {
    wait_before_look(work);
  }
  // Acquire in every look: none is known in advance to be the last. On x86 it is a plain load. What the rest of a
  // header line holds, and whatever its rank had to read, was written and read before its word.
  std::uint64_t value = 0;
  int looks = 0;
  const auto seen = [&](auto there) {
    for (; value = word.load(std::memory_order_acquire), !there(); ++looks) {
      if (looks == spins) {
        return false;
      }
      relax();
    }
    return true;
  };
  if (flag.is_header) {
    const bool there = seen([&] { return value >> 8 == work.sequence + 1; });
    looks_ = looks;
    return there ? compare_header(work, flag.member, HeaderLine::of(word), value) : Look::kNotYet;
  }
  const std::uint64_t index = work.base + flag.chunk + work.iteration;
  return seen([&] { return value > index; }) ? Look::kThere : Look::kNotYet;
}

// Where ranks outnumber cores, after a look that was in vain. A rank that has the same core gets nowhere while this one
// looks, so if such a rank is awaited the core goes to it at once. Ranks on other cores are likely to be on their way,
// and to give up the core for them would cost two turns; so this rank looks longer where it waits for them only, unless
// some rank on its own core may have other things to do.
Executor::Look Executor::await_in_turn(const Work& work, const Step& step, std::uint32_t next_wait, int spins) {
  const FlagPlace* const flags = work.places.flags + step.waits.begin;
  const std::uint32_t core = turns_->publish_core();
  if (core == 0) {
    return await(work, flags[next_wait], next_wait == 0, spins);
  }
  int awaited_here = 0;
  for (std::uint32_t i = 0; i < step.waits.count; ++i) {
    const int r = flags[i].member;
    const bool again = i > 0 && flags[i - 1].member == r;  // two flags of a rank follow each other
    if (turns_->runs_on(members_.empty() ? r : members_[r], core)) {
      if (i >= next_wait && await(work, flags[i], false, 0) == Look::kNotYet) {
        return Look::kNotYet;
      }
      awaited_here += again ? 0 : 1;
    }
  }
  const bool nobody_else = awaited_here == turns_->others_on(core);
  return await(work, flags[next_wait], next_wait == 0, nobody_else ? kSpinsForOtherCores : spins);
}

inline void Executor::signal_header(const Work& work, HeaderLine& line) {
  line.signature = work.signature;
  const std::uint64_t incomplete = work.sequence + 1 - completed;
  // Release: the payload or the slot, and the signature, before the word.
  line.word.store((work.sequence + 1) << 8 | incomplete, std::memory_order_release);
  wake_peers();
}

inline void Executor::signal(Work& work, const FlagPlace& flag) {
  if (flag.is_header) {
    signal_header(work, HeaderLine::of(flag.word(work.bases)));
    // From here on the others can go on: what does not concern them costs time that this rank waits anyway.
    if (const std::int64_t bytes = work.plan->ahead_bytes; bytes > 0) {
      // In the slot after the next one: the other ranks are done with it.
      fetch_lines_to_write(domain_->box(rank_, work.base + 2), bytes);
    }
    return;
  }
  const std::uint64_t index = work.base + flag.chunk + work.iteration;
  // Release: what the step before has written into boxes or arrays is visible to who sees the flag, and what it has
  // read there is read, so that who sees the flag may overwrite it.
  flag.word(work.bases).store(index + 1, std::memory_order_release);
  wake_peers();
}

inline void Executor::wake_peers() {
  for (const int r : mapped_peers_) {
    domain_->wake(r);
  }
}

// Drives the links once. There: no receive (or no send) is outstanding any more.
Executor::Look Executor::settle(Work& work, bool sends) {
  bool outstanding = false;
  for (std::size_t i = 0; i < work.streams.size(); ++i) {
    Stream& stream = *work.streams[i];
    const int peer = work.stream_peers[i];
    if (!stream.sends.empty() || !stream.receives.empty()) {
      links_[peer]->progress();
    }
    if (stream.peer_seen && differs(peer, stream.peer_signature, work)) {
      return Look::kDiffers;
    }
    outstanding = outstanding || !(sends ? stream.sends.empty() : stream.receives.empty());
  }
  if (outstanding) {
    return Look::kNotYet;
  }
  // Requests that nobody refers to any more need not be kept.
  if (!sends) {
    work.receives.clear();
  }
  return Look::kThere;
}

Executor::Look Executor::await_links(Work& work, bool sends, int spins) {
  Look seen = settle(work, sends);
  for (int i = 0; seen == Look::kNotYet && i < spins; ++i) {
    relax();
    seen = settle(work, sends);
  }
  return seen;
}

// A message step, or one of a loop.
Executor::Look Executor::take_step(Work& work, const Step& step, int spins) {
  switch (step.kind) {
    case StepKind::kSync:
    case StepKind::kCopy:
    case StepKind::kReduce:
      break;
    case StepKind::kSend:
    case StepKind::kReceive:
    case StepKind::kReceiveReduce:
      post(work, step);
      break;
    case StepKind::kAwait:
    case StepKind::kFlush:
      return await_links(work, step.kind == StepKind::kFlush, spins);
    case StepKind::kChoose:
      choose(work, step);
      break;
    case StepKind::kRead:
      return read(work, step);
    case StepKind::kLoop:
      work.loop_begin = work.step;
      work.iterations = step.length;
      break;
    case StepKind::kEndLoop:
      if (++work.iteration < work.iterations) {
        work.step = work.loop_begin;
      } else {
        work.iteration = 0;
      }
      find_places(work);
      break;
  }
  return Look::kThere;
}

Progress Executor::run(Work& work, int spins) {
  if (work.plan->begins_with_swap && work.step == 0) [[unlikely]] {
    spins = swap(work, spins);
  }
  const Step* const steps = work.plan->schedule.steps.data();
  // Where the work stands. It is told when it stops, and before anything that may ask: kept there alone, every step
  // would wait for the stores of the one before.
  std::uint32_t at = work.step;
  std::uint32_t next_wait = work.next_wait;
  const auto stop = [&](Look seen) {
    work.step = at;
    work.next_wait = next_wait;
    return stopped(seen);
  };
  for (; at < work.end; ++at) {
    const Step& step = steps[at];
    if (work.record == 0 && (step.waits.count > 0 || step.length > kShortStep || step.kind > StepKind::kReduce)) {
      record_posted(recorder_, work, communicator_);
    }
    if (step.kind == StepKind::kReduce && work.one_piece) {
      locate(work, step);  // before the wait: then it costs no time
    }
    for (; next_wait < step.waits.count; ++next_wait) {
      const bool in_turn = turns_ != nullptr && spins > 1;  // with several works in flight nobody looks for long
      Look seen = await(work, work.places.flags[step.waits.begin + next_wait], next_wait == 0, in_turn ? 0 : spins);
      if (in_turn && seen == Look::kNotYet) [[unlikely]] {
        seen = await_in_turn(work, step, next_wait, spins);
      }
      if (seen != Look::kThere) [[unlikely]] {
        return stop(seen);
      }
    }
    if (next_wait > 0 && spins > 1 && owns_lines(*work.plan)) {
      own_next_lines(work);
    }
    if (step.kind == StepKind::kCopy || step.kind == StepKind::kReduce) {
      if (!work.one_piece) [[unlikely]] {
        move_spans(work, step);
      } else if (step.kind == StepKind::kCopy) {
        copy(work, step);
      } else {
        reduce(work, step);
      }
    } else if (step.kind != StepKind::kSync) {
      work.step = at;
      work.next_wait = next_wait;
      const Look seen = take_step(work, step, spins);
      at = work.step;
      if (seen != Look::kThere) {
        return stop(seen);
      }
    }
    for (std::uint32_t i = 0; i < step.signals.count; ++i) {
      signal(work, work.places.flags[step.signals.begin + i]);
    }
    next_wait = 0;
  }
  work.step = at;
  work.next_wait = 0;
  if (work.record == 0) {
    record_posted(recorder_, work, communicator_);
  }
  if (!work.streams.empty()) [[unlikely]] {
    const Look seen = await_links(work, true, spins);
    if (seen != Look::kThere) {
      return stopped(seen);
    }
  }
  return Progress::kDone;
}

bool Executor::find_mismatch(Work& work) {
  for (const int r : mapped_peers_) {
    if (look_header(work, r) == Look::kDiffers) {
      return true;
    }
  }
  // A rank that disagrees may talk to this one although this one's schedule has nothing to do with it.
  for (int r = 0; !work.plan->peers.empty() && r < static_cast<int>(links_.size()); ++r) {
    const bool known = std::find(work.stream_peers.begin(), work.stream_peers.end(), r) != work.stream_peers.end();
    const bool mapped = std::find(mapped_peers_.begin(), mapped_peers_.end(), r) != mapped_peers_.end();
    if (links_[r] != nullptr && !known && !mapped) {
      open_stream(work, r);
    }
  }
  for (std::size_t i = 0; i < work.streams.size(); ++i) {
    if (work.streams[i]->peer_seen && differs(work.stream_peers[i], work.streams[i]->peer_signature, work)) {
      return true;
    }
  }
  return false;
}

}  // namespace collectives
