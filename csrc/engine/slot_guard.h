// When a collective may write into shared memory that others read in an earlier one.
//
// Header lines and slots are used again in turn. A work may start when no peer can still need what it will overwrite:
// header line s belonged to collective s - kHeaderLines, and the slot of chunk c to chunk c - slots. Where the pitch of
// the slots has changed, it may have belonged to any chunk.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/executor/executor.h"
#include "engine/work.h"
#include "memory/domain.h"

namespace collectives {

class SlotGuard {
 public:
  // domain: nullptr where no rank is mapped; then there is nothing to guard.
  SlotGuard(const Domain* domain, Executor& executor) : domain_(domain), executor_(executor) {}

  bool may_start(const Work& work) {
    if (domain_ == nullptr) {
      return true;
    }
    const Schedule& schedule = work.plan->schedule;
    if (work.sequence < headers_free_until_ &&
        (schedule.chunks == 0 || (reach_of(work) <= slots_free_until_ && schedule.slot_pitch == slot_pitch_)))
        [[likely]] {
      return true;
    }
    return look(work);
  }

  // To be called for each work that starts.
  void started(const Work& work) {
    begins_[work.sequence % kHeaderLines] = work.base;
    if (work.plan->schedule.chunks > 0) {
      slot_pitch_ = work.plan->schedule.slot_pitch;
    }
  }

  // How many collectives every mapped rank must have completed before the work may start.
  std::uint64_t needed_before(const Work& work) const;

 private:
  bool look(const Work& work);
  // The end of the chunks that the work fills before it waits for any other rank.
  std::uint64_t reach_of(const Work& work) const {
    const std::int64_t chunks = work.plan->schedule.chunks;
    return work.base + static_cast<std::uint64_t>(std::min<std::int64_t>(chunks, domain_->limits().slots));
  }

  const Domain* domain_;
  Executor& executor_;
  std::uint64_t begins_[kHeaderLines] = {};  // first chunks of the latest collectives that have started
  std::int64_t slot_pitch_ = 0;              // of the latest collective that has started and uses slots
  std::uint64_t kept_ = 0;                   // slots of collectives below this one have been, or may be, filled again
  std::uint64_t headers_free_until_ = 0;     // collectives below this one may write their header lines
  std::uint64_t slots_free_until_ = 0;       // chunks below this one may fill their slots, at the present pitch
};

}  // namespace collectives
