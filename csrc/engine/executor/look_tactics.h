// What a rank does around its wait for the header of another, so that the cache line comes soon. Which of it pays was
// measured for each kind of processor (cpu/processor.h); the plan of a call says what to do (plan_meeting in plan.cc).
#pragma once

#include <cstdint>

#include "cpu/cache_lines.h"
#include "cpu/spin.h"
#include "engine/work.h"
#include "memory/domain.h"
#include "recorder/recorder.h"

namespace collectives {

class LookTactics {
 public:
  // domain: nullptr where no rank is mapped.
  LookTactics(int rank, const Domain* domain, const Recorder& recorder)
      : rank_(rank), domain_(domain), recorder_(recorder), brisk_(CounterClock().counts_in(kBriskNs)) {}

  // Between publishing the own header and the first look for another one.
  void wait_before_look(const Work& work) const {
    const FirstLook first_look = work.plan->first_look;
    if (first_look == FirstLook::kLate || (first_look == FirstLook::kLateNear && looks_ <= kLooksOfNear)) {
      relax();
    } else if (first_look == FirstLook::kLateByDistance) {
      // Decided before the last pause: whatever comes after that pause delays the look.
      if (work.plan->owned_bytes == 0 && !work.plan->schedule.swaps_buffers && !follows_fast()) {
        relax();  // the rank that is awaited has lines to fill, and this one has none
      }
      relax();
    } else if (first_look == FirstLook::kFenced) {
      fence_loads();
    }
  }

  // So many looks at a header were in vain.
  void looked(int looks) { looks_ = looks; }

  // Prefetches for ownership the lines that the next call writes, if it is like this one and has not been begun: the
  // other ranks have read what was there.
  void own_next_lines(const Work& work) const {
    if (!owns_lines(*work.plan)) {
      return;
    }
    prefetch_to_own(&domain_->header(rank_, work.sequence + 1));
    for (std::int64_t i = 0; i < work.plan->owned_bytes; i += kLineBytes) {
      prefetch_to_own(domain_->bounce(rank_, work.base + 1) + i);
    }
  }

  // Prefetches lines that a later call writes, while this one waits: those of the slot after the next one, with which
  // the other ranks are done.
  void prefetch_ahead(const Work& work) const {
    if (const std::int64_t bytes = work.plan->ahead_bytes; bytes > 0) {
      prefetch_to_write(domain_->bounce(rank_, work.base + 2), bytes);
    }
  }

 private:
  // Where no lines are prefetched for ownership, the number of vain looks tells the distance: up to here the other rank
  // has entered at the same time, on a core that shares a cache. Between cores that share none, a pause before the
  // first look gains nothing.
  static constexpr int kLooksOfNear = 5;

  // Where they are prefetched, looks tell nothing about the distance. But short calls that follow each other this fast
  // are between cores that share a cache. A program that does other things between its calls counts as far from all
  // others, which costs little.
  static constexpr double kBriskNs = 170;

  // Whether this call has followed the last one so fast that both were between cores that share a cache.
  bool follows_fast() const { return recorder_.interval() < brisk_; }
  bool owns_lines(const Plan& plan) const {
    return plan.owning == Owning::kEverywhere || (plan.owning == Owning::kFar && !follows_fast());
  }

  int rank_;
  const Domain* domain_;
  const Recorder& recorder_;
  int looks_ = 0;        // at the header that was awaited last
  std::uint64_t brisk_;  // kBriskNs in counts of the recorder
};

}  // namespace collectives
