#include "core/lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace collectives {

void Lock::lock_slowly() {
  contenders_.fetch_add(1, std::memory_order_relaxed);
  // 2: locked, and a thread sleeps.
  while (state_.exchange(2, std::memory_order_acquire) != 0) {
    syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, 2, nullptr, nullptr, 0);
  }
  contenders_.fetch_sub(1, std::memory_order_relaxed);
}

void Lock::wake_one() { syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }

}  // namespace collectives
