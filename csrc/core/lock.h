// A lock whose uncontended path is two atomic exchanges, and that knows whether somebody waits for it.
#pragma once

#include <atomic>
#include <cstdint>

namespace collectives {

class Lock {
 public:
  void lock() {
    if (state_.exchange(1, std::memory_order_acquire) == 0) {
      return;
    }
    contenders_.fetch_add(1, std::memory_order_relaxed);
    // 2: locked, and somebody sleeps.
    while (state_.exchange(2, std::memory_order_acquire) != 0) {
      state_.wait(2, std::memory_order_relaxed);
    }
    contenders_.fetch_sub(1, std::memory_order_relaxed);
  }
  void unlock() {
    if (state_.exchange(0, std::memory_order_release) == 2) {
      state_.notify_one();
    }
  }
  bool contended() const { return contenders_.load(std::memory_order_relaxed) != 0; }

 private:
  std::atomic<std::uint32_t> state_{0};
  std::atomic<std::uint32_t> contenders_{0};
};

}  // namespace collectives
