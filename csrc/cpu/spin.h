// Hints that a spin loop gives to the processor.
#pragma once

namespace collectives {

// Between two looks: saves power, and leaves the core to its other hardware thread.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Later loads do not begin before earlier ones are done. Only for timing: no correctness depends on it, and where a
// processor has no such instruction it does nothing.
inline void fence_loads() {
#if defined(__x86_64__)
  __builtin_ia32_lfence();
#endif
}

}  // namespace collectives
