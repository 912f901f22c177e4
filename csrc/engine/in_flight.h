// The operations of a communicator that are in flight: in which order they start, which may run side by side, and when
// they are over.
//
// Collectives are numbered when they are posted and start in that order; several run at a time where their links and
// slots allow it. How many numbers a work takes that continues (continuation.h) is not known before its last call, so
// until then no later work has a number, and none starts. Messages are beside them: see messages.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/executor/executor.h"
#include "engine/members.h"
#include "engine/messages.h"
#include "engine/slot_guard.h"
#include "engine/work.h"
#include "memory/domain.h"

namespace collectives {

class InFlight {
 public:
  // domain: nullptr where no rank is mapped.
  InFlight(Engine& engine, const Domain* domain, const Members& members, const CommunicatorOptions& options);

  Executor& executor() { return executor_; }
  Messages& messages() { return messages_; }
  const Messages& messages() const { return messages_; }

  // Gives a prepared work the next number: from here on the call counts, and the other ranks wait for it.
  void number(Work& work) {
    work.posted.reset();
    work.warned = false;
    if (held_ > 0) [[unlikely]] {
      hold(work);
    } else {
      number_again(work);
    }
  }
  // The same of a work that ended without having been waited for.
  void number_again(Work& work) {
    work.record = 0;
    work.state.store(WorkState::kQueued, std::memory_order_relaxed);
    work.sequence = next_sequence_;
    ++next_sequence_;
    work.base = next_chunk_;
    next_chunk_ += work.plan->schedule.chunks;
  }
  std::uint64_t next_sequence() const { return next_sequence_; }
  // The work, which is posted now, continues.
  void will_continue(Work& work) {
    work.continues = true;
    ++held_;
  }
  // Its last call is prepared, or there will be none.
  void ends_continuing(Work& work) {
    work.continues = false;
    --held_;
  }
  // The next call of a work that continues, or did until now, is prepared: it starts before any other.
  void add_next_call(const std::shared_ptr<Work>& work) {
    remove_active(work);
    queued_.push_front(work);
  }
  // All collectives below this number are over on this rank.
  std::uint64_t completed() const { return executor_.completed; }

  // No collective is in flight.
  bool idle() const { return active_.empty() && queued_.empty(); }
  bool busy() const { return !idle() || !messages_.active().empty(); }
  const std::vector<std::shared_ptr<Work>>& active() const { return active_; }
  const std::deque<std::shared_ptr<Work>>& queued() const { return queued_; }
  // All that is not over, messages as well.
  std::vector<std::shared_ptr<Work>> pending() const;
  // Where in the order of collectives a failure of the work belongs: a message has no place of its own.
  std::int64_t position(const Work& work) const {
    return static_cast<std::int64_t>(work.is_message() ? executor_.completed : work.sequence);
  }

  // Whether the next collective may start as far as shared memory is concerned.
  bool may_start(const Work& work) { return slots_.may_start(work); }
  void start(Work& work) {
    slots_.started(work);
    work.state.store(WorkState::kActive, std::memory_order_relaxed);
    if (work.record != 0) [[unlikely]] {
      engine_.recorder().started(work);
    }
    executor_.begin(work);
  }
  // A work that has started, and one that has yet to.
  void add_active(const std::shared_ptr<Work>& work) { active_.push_back(work); }
  void add_queued(const std::shared_ptr<Work>& work) { queued_.push_back(work); }
  // Starts what may start, in order. Mapped links serve one collective at a time.
  void start_queued();
  // Takes a collective that is over off the list, where it is there still.
  void remove_active(const std::shared_ptr<Work>& work);
  void remove_finished();
  void remove_all();

  // The schedule of the work has been run to its end, and the work is over or continues.
  void end_call(Work& work) {
    if (!work.ends_at_once) [[unlikely]] {
      clear(work);
    }
    mapped_bytes_ += work.plan->mapped_bytes;
    engine_.recorder().done(work);
  }
  void complete(Work& work) {
    end_call(work);
    work.state.store(WorkState::kDone, std::memory_order_release);
  }
  // Tells the other ranks up to where all collectives are over, so that they may overwrite what those have read.
  void publish_completed();
  void publish_completed(std::uint64_t lowest) {
    executor_.completed = lowest;
    if (own_page_ != nullptr) {
      // Release: the counterpart of SlotGuard on the other ranks.
      own_page_->completed.store(lowest, std::memory_order_release);
    }
  }

  // The ranks that a work which has started waits for; none where it is a receive from any rank.
  std::vector<int> missing(const Work& work) const;
  // The ranks that keep a work from going on, whether it has started or not.
  std::vector<int> waits_for(const Work& work) const;
  // The same of all that is pending, in order.
  std::vector<int> waits_for_all() const;

  // Payload bytes that collectives which are over have moved through mapped memory.
  std::int64_t mapped_bytes() const { return mapped_bytes_; }
  // Payload bytes of operations that are over, sent to a member over the link of its process.
  std::int64_t bytes_sent(int member) const { return executor_.sent(member) + messages_.sent(member); }

 private:
  // Collectives over TCP that may be in flight at a time.
  static constexpr std::size_t kMaxActive = 8;

  void clear(Work& work);
  void hold(Work& work);

  Engine& engine_;
  const Domain* domain_;
  ControlPage* own_page_;  // nullptr where no rank is mapped
  int rank_;
  int size_;
  Executor executor_;
  SlotGuard slots_;
  Messages messages_;
  std::deque<std::shared_ptr<Work>> queued_;
  std::vector<std::shared_ptr<Work>> active_;
  std::uint64_t next_sequence_ = 0;
  std::uint64_t next_chunk_ = 0;
  std::size_t held_ = 0;  // works that continue, and those behind them that have no number yet
  std::int64_t mapped_bytes_ = 0;
};

}  // namespace collectives
