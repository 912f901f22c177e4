// What a spin loop tells the processor.
#pragma once

namespace collectives {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Loads that come after it are not begun before those that came before it are done. For timing: where a processor has
// no such instruction it does nothing, and no correctness depends on it.
inline void fence_loads() {
#if defined(__x86_64__)
  __builtin_ia32_lfence();
#endif
}

}  // namespace collectives
