// A fence between memory that others read or write besides the protocol of atomic words, as the kernel does for a rank
// that reads another one's arrays (engine/executor/reading.h), and the words.
#pragma once

#include <atomic>

namespace collectives {

inline void full_fence() {
#if !defined(__SANITIZE_THREAD__)  // which knows no fences, and does not see what the kernel copies
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace collectives
