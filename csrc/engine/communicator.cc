#include "engine/communicator.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "core/float_environment.h"
#include "engine/record.h"
#include "transports/transport.h"

namespace collectives {
namespace {

void unpack(const std::byte* from, const std::vector<Span>& to) {
  for (const Span& span : to) {
    if (span.bytes > 0) {
      std::memcpy(span.data, from, span.bytes);
    }
    from += span.bytes;
  }
}

// Whether it has none of what keeps a call from having a key, besides its arrays, its root and its op.
inline bool is_keyed(const Call& call) {
  return call.lengths.empty() && !call.by_nccl && call.details == nullptr && call.name.empty();
}

}  // namespace

inline void Communicator::start(Work& work) {
  slots_->started(work);
  work.state.store(WorkState::kActive, std::memory_order_relaxed);
  if (work.record != 0) [[unlikely]] {
    engine_->recorder().started(work);
  }
  executor_->begin(work);
}

// Of a call on one array or none, about which ranks have to agree on nothing but what is in the key.
inline CallKey Communicator::key_of(const Call& call) const {
  CallKey key;
  if (call.input.size() > 1 || call.output.size() != call.input.size() || !is_keyed(call) ||
      call.op == Op::kPremulSum || call.root < 0 || call.root >= size()) {
    return key;
  }
  key.head = std::bit_cast<std::uint64_t>(static_cast<const CallHead&>(call));
  key.algorithm = call.algorithm;
  if (!call.input.empty()) {
    key.input_bytes = call.input[0].bytes;
    key.output_bytes = call.output[0].bytes;
    key.shape = options_.compare_shapes ? call.shapes.hash() : 0;
    if (domain_ != nullptr) {
      key.input_heap_offset = domain_->heap_offset(call.input[0].data, call.input[0].bytes);
      key.output_heap_offset = domain_->heap_offset(call.output[0].data, call.output[0].bytes);
    }
  }
  return key;
}

// The common case: `work` ran a call of the same key, perhaps on other private memory.
inline void Communicator::prepare_again(Work& work, const Call& call) {
  if (!call.input.empty()) {
    work.input_spans[0] = call.input[0];
    work.output_spans[0] = call.output[0];
    work.find_arrays();
  }
  work.timeout_s = call.timeout_s >= 0 ? call.timeout_s : options_.timeout_s;
  number(work);
}

// The commonest case: the last call again, of which nothing has to be worked out, not even its key.
inline bool Communicator::is_last(const Call& call) const {
  return call.input.size() == 1 && call.output.size() == 1 && last_.work != nullptr && last_.input == call.input[0] &&
         last_.output == call.output[0] && last_.shape == call.shapes.hash() && last_.algorithm == call.algorithm &&
         last_.timeout_s == call.timeout_s &&
         last_.head == std::bit_cast<std::uint64_t>(static_cast<const CallHead&>(call)) && is_keyed(call);
}

// The place of a work that is prepared for the call, which is not the last one again.
std::shared_ptr<Work>& Communicator::prepared(const Call& call) {
  const CallKey key = key_of(call);
  std::shared_ptr<Work>& spare = spares_.of(key);
  last_.work = nullptr;
  if (spare->key.algorithm >= 0 && usable()) {
    prepare_again(*spare, call);
  } else {
    prepare(*spare, call);
    spare->key = key;
  }
  if (key.algorithm >= 0 && !call.input.empty()) {
    last_ = {&spare,         spare.get(),   key.head,       call.algorithm,
             call.timeout_s, call.input[0], call.output[0], call.shapes.hash()};
  }
  return spare;
}

bool Communicator::run(const Call& call, std::shared_ptr<Work>& work) {
  refuse_after_fork();
  const std::lock_guard guard(engine_->lock());
  if (options_.threads) [[unlikely]] {
    note_caller();
  }
  const FloatEnvironment own;
  const bool again = is_last(call);
  if (again) [[likely]] {
    number_again(*last_.work);
  }
  std::shared_ptr<Work>& place = again ? *last_.place : prepared(call);
  // From here on the call counts: the other ranks wait for it.
  try {
    return run_prepared(place, again, work);
  } catch (const CollectivesError&) {
    throw;  // of a work that has ended
  } catch (...) {
    if (place->state.load(std::memory_order_relaxed) == WorkState::kActive && active_.empty()) {
      active_.push_back(place);  // to be ended with all others; there is room, see the constructor
    }
    fail_by_exception();
    throw;
  }
}

inline bool Communicator::run_prepared(std::shared_ptr<Work>& place, bool again, std::shared_ptr<Work>& work) {
  Work& ready = again ? *last_.work : *place;
  if ((again || (active_.empty() && queued_.empty())) && slots_->may_start(ready)) [[likely]] {
    start(ready);
    const Progress progress = executor_->run(ready, engine_->spins());
    if (progress == Progress::kDone && (ready.ends_at_once ? !aborted() : quiet(ready))) [[likely]] {
      complete(ready);
      publish_completed(next_sequence_);  // no other is in flight
      return true;
    }
    if (step_ended(ready, progress)) {
      if (ready.error != nullptr) {
        throw CollectivesError(*ready.error);
      }
      return true;
    }
    engine_->recorder().waits(ready);
    watch_soon();
    active_.push_back(place);
  } else {
    record_posted(engine_->recorder(), ready, options_.id);
    watch_soon();
    queued_.push_back(place);
  }
  last_.work = nullptr;
  work = std::move(place);
  return false;
}

std::shared_ptr<Work> Communicator::post(const Call& call, bool async) {
  refuse_after_fork();
  const std::lock_guard guard(engine_->lock());
  if (options_.threads) {
    note_caller();
  }
  auto work = std::make_shared<Work>();
  if (async) {
    engine_->need_progress_thread();
  }
  const FloatEnvironment own;
  prepare(*work, call);
  try {
    record_posted(engine_->recorder(), *work, options_.id);
    last_.work = nullptr;
    queued_.push_back(work);
  } catch (...) {
    fail_by_exception();
    throw;
  }
  drive();
  watch(*work);
  engine_->wake_waiters();
  if (async && !work->finished()) {
    engine_->wake_progress_thread();
  }
  return work;
}

bool Communicator::wait(Work& work, double timeout_s) {
  if (!work.finished()) {
    refuse_after_fork();
    const std::lock_guard guard(engine_->lock());
    engine_->wait([&] { return work.finished(); }, timeout_s);
  }
  if (!work.finished()) {
    return false;
  }
  if (work.error != nullptr) {
    throw CollectivesError(*work.error);
  }
  return true;
}

void Communicator::finish_run(std::shared_ptr<Work> work) {
  const std::lock_guard guard(engine_->lock());
  last_.work = nullptr;  // it may have been where this one goes
  spares_.put(std::move(work));
}

// Moves works from the queue to the active ones, in order. Mapped links serve one collective at a time.
void Communicator::activate() {
  while (!queued_.empty() && active_.size() < kMaxActive) {
    Work& work = *queued_.front();
    const auto on_mapped_links = [&](const Work& w) { return domain_ != nullptr && w.plan->schedule.uses_links; };
    const bool links_taken = on_mapped_links(work) && std::any_of(active_.begin(), active_.end(),
                                                                  [&](const auto& w) { return on_mapped_links(*w); });
    if (links_taken || !slots_->may_start(work)) {
      return;
    }
    start(work);
    active_.push_back(std::move(queued_.front()));
    queued_.pop_front();
  }
}

// Runs one work on; true when it is finished.
bool Communicator::step(Work& work, int spins) { return step_ended(work, executor_->run(work, spins)); }

bool Communicator::step_ended(Work& work, Progress progress) {
  switch (progress) {
    case Progress::kDone:
      if (!quiet(work) && stopped(work)) {
        finish(work, *error_);
      } else if (!work.finished()) {
        complete(work);
        update_completed();
      }
      return true;
    case Progress::kMismatch:
      mismatch(work, executor_->mismatched_rank(), executor_->mismatched_signature());
      return true;
    case Progress::kBlocked:
      return false;
  }
  return false;
}

bool Communicator::drive() {
  if (driving_) {
    return false;  // a peer was lost in the middle of a step
  }
  driving_ = true;
  const FloatEnvironment own;
  bool moved = true;
  try {
    moved = drive_works();
  } catch (const std::exception&) {
    fail_by_exception();
  }
  driving_ = false;
  return moved;
}

bool Communicator::drive_works() {
  bool moved = false;
  activate();
  const int spins = active_.size() <= 1 ? engine_->spins() : 1;
  for (std::size_t i = 0; i < active_.size();) {
    const std::shared_ptr<Work> work = active_[i];
    const std::uint32_t before = work->step;
    const std::int64_t iteration = work->iteration;
    if (step(*work, spins)) {
      moved = true;
      engine_->note_finished();
      // A failure has emptied the list.
      const auto position = std::find(active_.begin(), active_.end(), work);
      if (position != active_.end()) {
        active_.erase(position);
      }
      update_completed();
      activate();
    } else {
      moved = moved || work->step != before || work->iteration != iteration;
      ++i;
    }
  }
  return drive_messages() || moved;
}

inline void Communicator::complete(Work& work) {
  if (!work.ends_at_once) [[unlikely]] {
    clear(work);
  }
  mapped_bytes_ += work.plan->mapped_bytes;
  engine_->recorder().done(work);
  work.state.store(WorkState::kDone, std::memory_order_release);
}

void Communicator::clear(Work& work) {
  executor_->end(work);
  if (work.is_packed && (work.plan->problem.collective != Collective::kReduce || work.plan->problem.root == rank())) {
    unpack(work.result_span.data, work.output_spans);
  }
  if (!work.scaled.empty()) {
    work.scaled = std::vector<std::byte>();  // as large as the input, and the work may be kept
  }
}

void Communicator::update_completed() {
  std::uint64_t lowest = queued_.empty() ? next_sequence_ : queued_.front()->sequence;
  for (const auto& work : active_) {
    if (!work->finished()) {
      lowest = std::min(lowest, work->sequence);
    }
  }
  publish_completed(lowest);
}

// All collectives below this one are complete.
inline void Communicator::publish_completed(std::uint64_t lowest) {
  executor_->completed = lowest;
  if (own_page_ != nullptr) {
    // Release: the counterpart of SlotGuard on the other ranks.
    own_page_->completed.store(lowest, std::memory_order_release);
  }
}

}  // namespace collectives
