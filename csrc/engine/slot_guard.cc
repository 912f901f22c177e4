#include "engine/slot_guard.h"

#include <algorithm>
#include <limits>

namespace collectives {

std::uint64_t SlotGuard::needed_before(const Work& work) const {
  const std::uint64_t by_headers = work.sequence + 1 > kHeaderLines ? work.sequence + 1 - kHeaderLines : 0;
  const auto slots = static_cast<std::uint64_t>(domain_->limits().slots);
  if (work.plan->schedule.chunks == 0) {
    return by_headers;
  }
  if (work.plan->schedule.slot_pitch != slot_pitch_) [[unlikely]] {
    return work.sequence;
  }
  const std::uint64_t reach = reach_of(work);
  if (reach <= slots) {
    return by_headers;
  }
  std::uint64_t kept = std::max(kept_, by_headers);
  while (kept < work.sequence && begins_[kept % kHeaderLines] < reach - slots) {
    ++kept;
  }
  return kept;
}

// Asks the other ranks what they have completed.
bool SlotGuard::look(const Work& work) {
  const std::uint64_t needed = needed_before(work);
  kept_ = std::max(kept_, needed);
  auto& completed = executor_.peers_completed();
  std::uint64_t lowest = std::numeric_limits<std::uint64_t>::max() - kHeaderLines;
  for (const int r : executor_.mapped_peers()) {
    if (completed[r] < needed) {
      // Acquire: the rank's last reads of the line and of the slots come before what this one writes there next.
      completed[r] = domain_->control(r).completed.load(std::memory_order_acquire);
    }
    if (completed[r] < needed) {
      return false;
    }
    lowest = std::min(lowest, completed[r]);
  }
  lowest = std::min(lowest, executor_.completed);
  headers_free_until_ = lowest + kHeaderLines;
  slots_free_until_ = (lowest < work.sequence ? begins_[lowest % kHeaderLines] : work.base) +
                      static_cast<std::uint64_t>(domain_->limits().slots);
  return executor_.completed >= needed;
}

}  // namespace collectives
