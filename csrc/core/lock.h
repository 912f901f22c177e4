// A lock whose uncontended path is two atomic exchanges, and that knows whether a thread waits for it.
#pragma once

#include <atomic>
#include <cstdint>

namespace collectives {

class Lock {
 public:
  void lock() {
    if (state_.exchange(1, std::memory_order_acquire) != 0) {
      lock_slowly();
    }
  }
  void unlock() {
    if (state_.exchange(0, std::memory_order_release) == 2) {
      wake_one();
    }
  }
  // A hint, so relaxed.
  bool contended() const { return contenders_.load(std::memory_order_relaxed) != 0; }

 private:
  // Not std::atomic::wait: that of libstdc++ skips the system call when a table says that no thread waits, and each of
  // our shared libraries can have a table of its own.
  void lock_slowly();
  void wake_one();

  std::atomic<std::uint32_t> state_{0};
  std::atomic<std::uint32_t> contenders_{0};
};

}  // namespace collectives
