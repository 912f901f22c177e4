#include "engine/flag_latency.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "core/error.h"

namespace collectives {

double flag_latency(const Domain* domain, int rank, int size, int peer, int rounds, double timeout_s) {
  using Clock = std::chrono::steady_clock;
  if (domain == nullptr || peer < 0 || peer >= size || peer == rank || !domain->has(peer)) {
    throw ArgumentError("rank " + std::to_string(peer) + " shares no memory with rank " + std::to_string(rank));
  }
  std::atomic<std::uint64_t>& mine = domain->control(rank).probe;
  const std::atomic<std::uint64_t>& theirs = domain->control(peer).probe;
  // The words only ever grow, by `rounds` in each measurement, so measurements need no reset.
  const std::uint64_t start = mine.load(std::memory_order_relaxed);
  const bool first = rank < peer;
  const Clock::time_point begin = Clock::now();
  Clock::time_point measured = begin;
  for (int i = 1; i <= rounds; ++i) {
    const std::uint64_t value = start + static_cast<std::uint64_t>(i);
    if (first) {
      mine.store(value, std::memory_order_release);
    }
    for (int looks = 1; theirs.load(std::memory_order_acquire) < value; ++looks) {
      if (looks % 1024 == 0) {
        sched_yield();
        if (std::chrono::duration<double>(Clock::now() - begin).count() > timeout_s) {
          throw CollectivesError(ErrorKind::kDeadline,
                                 "rank " + std::to_string(peer) + " did not take part in flag_latency() within " +
                                     std::to_string(timeout_s) + " s",
                                 {rank, peer, "flag_latency", -1, "", timeout_s});
        }
      }
    }
    if (!first) {
      mine.store(value, std::memory_order_release);
    }
    if (i == 1) {
      measured = Clock::now();  // the first round only brings the ranks together
    }
  }
  const double nanoseconds = std::chrono::duration<double, std::nano>(Clock::now() - measured).count();
  return nanoseconds / (2.0 * (rounds - 1));
}

}  // namespace collectives
