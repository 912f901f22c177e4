// What the C files of loops.py have in common. Included after _GNU_SOURCE is defined.

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

enum {
  kLine = 64,
  kFlagLine = 128,  // processors fetch lines in pairs
  kHuge = 2 << 20,
};

// A whole cache line, however wide the registers of the machine are.
typedef float Line __attribute__((vector_size(kLine), aligned(4), may_alias));

static inline size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static inline void copy_by_loop(char* restrict to, const char* restrict from, size_t bytes) {
  size_t i = 0;
  for (; i + kLine <= bytes; i += kLine) *(Line*)(to + i) = *(const Line*)(from + i);
  for (; i < bytes; i += 4) *(float*)(to + i) = *(const float*)(from + i);
}

// `bytes`, a multiple of kHuge, of the shared memory `file`, on huge pages as far as the system gives them; null with
// errno set.
static char* map_shared(int file, size_t bytes) {
  // Huge pages have to begin at their own size in memory too.
  char* reserved = mmap(NULL, bytes + kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return NULL;
  const size_t before = -(uintptr_t)reserved & (kHuge - 1);
  char* base = reserved + before;
  if (before > 0) munmap(reserved, before);
  munmap(base + bytes, kHuge - before);
  if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) return NULL;
  madvise(base, bytes, MADV_HUGEPAGE);
  for (size_t i = 0; i < bytes; i += 4096) {
    atomic_fetch_add((_Atomic unsigned char*)(base + i), 0);  // the other ranks do the same
  }
#ifdef MADV_COLLAPSE
  madvise(base, bytes, MADV_COLLAPSE);
#endif
  return base;
}
