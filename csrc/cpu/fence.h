// A fence between the atomic words that ranks exchange and memory that is read or written outside their protocol: the
// kernel does that for a rank that reads another one's arrays (engine/executor/reading.h).
#pragma once

#include <atomic>

namespace collectives {

inline void full_fence() {
#if !defined(__SANITIZE_THREAD__)  // it knows no fences, and does not see what the kernel copies
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace collectives
