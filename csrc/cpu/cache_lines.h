// Ownership of cache lines: how a core gets lines that it, or another core, will write next.
//
// A core that writes a line which another core has only read pays for an ownership upgrade, the slowest thing that two
// cores can do to each other (docs/lab/cache-lines.md: 7.5 GB/s between caches, against 32 for lines that are dirty at
// the other core). So the only reader of a bounce buffer acquires ownership of what it reads: it writes one byte of
// every line back. The lines are then dirty in its cache and migrate when their owner writes them next. Never for
// memory with several readers. These are plain writes to memory of another rank: they come before this rank's next
// signal or its count of completed collectives, and the other rank writes only after it has seen that, so the writes
// race with nothing.
//
// That pays on AMD's processors up to Zen 4 (cpu/processor.h). On Zen 5 and on Intel's an upgrade costs no more than
// any other transfer between cores, and a byte that is written back is one transfer more: without it a broadcast or an
// all_gather takes 10 to 25 % less. Only short reductions and messages (transports/consume.h) gain by it there, too: it
// happens while no rank waits, and spares the owner of the buffer a wait. A short broadcast does not need it either
// where the root prefetches its lines for ownership before it writes them (Plan::owned_bytes). Where two ranks swap
// bounce buffers (swapped()), the reader writes a line next, and only short reductions acquire ownership.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace collectives {

inline constexpr std::int64_t kLineBytes = 64;
// What is combined at a time, so that its lines are still in the nearest cache when their ownership is acquired.
inline constexpr std::int64_t kOwnBlock = 4096;

// Makes the lines of [data, data + bytes) dirty in this core's cache; their contents stay the same.
inline void own_read_lines(std::byte* data, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += kLineBytes) {
    auto* byte = reinterpret_cast<volatile unsigned char*>(data + i);
    *byte = *byte;
  }
}

// memcpy that acquires ownership of the lines of the source.
inline void copy_and_own(std::byte* destination, std::byte* source, std::int64_t bytes) {
  std::int64_t i = 0;
  for (; i + kLineBytes <= bytes; i += kLineBytes) {
    std::memcpy(destination + i, source + i, kLineBytes);
    own_read_lines(source + i, 1);
  }
  if (i < bytes) {
    std::memcpy(destination + i, source + i, bytes - i);
    own_read_lines(source + i, 1);
  }
}

// memcpy by a string instruction: it writes whole lines without fetching them from the core that had them last. Loops
// of stores wait for each of these, and for short copies memcpy is such a loop.
inline void copy_by_string(std::byte* destination, const std::byte* source, std::int64_t bytes) {
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  asm volatile("rep movsb" : "+D"(destination), "+S"(source), "+c"(bytes) : : "memory");
#else
  std::memcpy(destination, source, bytes);
#endif
}

// Prefetches a line for ownership: the next store to it need not wait for the cores that have it. By assembler, since
// __builtin_prefetch(line, 1) fetches for reading unless the compiler may assume that the processor knows `prefetchw`.
inline void prefetch_to_own(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

// Prefetches lines that will be written soon, while there is something to wait for. The compiler may make this a
// prefetch for reading, which is wanted here: to acquire ownership of so many lines is slower on some processors, and
// hardly faster on others (docs/lab/cache-lines.md).
inline void prefetch_to_write(const std::byte* data, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += kLineBytes) {
    __builtin_prefetch(data + i, 1);
  }
}

}  // namespace collectives
