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

// Nothing after this begins before all that comes before it has been done (stores may still be on their way). For the
// processors that Processor::owns_headers is about.
inline void finish_first() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_lfence();
#endif
}

}  // namespace collectives
