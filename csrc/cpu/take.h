// Reading memory that another rank has written, so that it can write it again cheaply.
//
// A rank that writes cache lines which another core has only read pays for an ownership upgrade per line, the slowest
// thing that two cores can do to each other (docs/lab/cache-lines.md: 7.5 GB/s between caches, against 32
// for lines that are dirty at the other core). So the only reader of a box writes one byte of every line back as it
// goes: the lines are then dirty here and migrate when their owner writes them next. Never for memory with several
// readers. These are plain writes to memory of another rank: they come before this rank's next signal or its count of
// completed collectives, and the owner writes after it has seen that, so they race with nothing.
//
// That is so on AMD's processors up to Zen 4 (cpu/processor.h). On Zen 5 and on Intel's an upgrade costs no more than
// any other transfer between cores, and a byte that is written back is one transfer more: without it a broadcast or an
// all_gather takes 10 to 25 % less. Only short reductions and messages (transports/consume.h) are better off with it
// there, too: it happens while nobody waits, and spares the owner a wait. Nor does a short broadcast need it whose root
// makes the lines its own before it writes them (Plan::owned_bytes). Where two ranks trade boxes (traded()) it is the
// reader who writes a line next, and only short reductions take lines.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace collectives {

inline constexpr std::int64_t kTakeLine = 64;
// What is combined at a time, so that its lines are still in the nearest cache when they are taken.
inline constexpr std::int64_t kTakeBlock = 4096;

// Makes the lines of [data, data + bytes) dirty in this core's cache; their contents stay the same.
inline void take_lines(std::byte* data, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += kTakeLine) {
    auto* byte = reinterpret_cast<volatile unsigned char*>(data + i);
    *byte = *byte;
  }
}

// memcpy that takes the lines of the source.
inline void copy_taking(std::byte* destination, std::byte* source, std::int64_t bytes) {
  std::int64_t i = 0;
  for (; i + kTakeLine <= bytes; i += kTakeLine) {
    std::memcpy(destination + i, source + i, kTakeLine);
    take_lines(source + i, 1);
  }
  if (i < bytes) {
    std::memcpy(destination + i, source + i, bytes - i);
    take_lines(source + i, 1);
  }
}

// memcpy by a string instruction: whole lines are written without being fetched from the core that had them last. Loops
// of stores wait for each of these, and memcpy is one of them for what is short.
inline void copy_by_string(std::byte* destination, const std::byte* source, std::int64_t bytes) {
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  asm volatile("rep movsb" : "+D"(destination), "+S"(source), "+c"(bytes) : : "memory");
#else
  std::memcpy(destination, source, bytes);
#endif
}

// Begins to take a line away from the cores that have it, so that the next store to it need not wait for them.
// Unless the compiler may assume this instruction, __builtin_prefetch(line, 1) is one that fetches for reading.
inline void own_line(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

// Begins to fetch lines that will be written soon, while there is something to wait for. As own_line() says, it may be
// for reading; to take so many away from other cores is slower on some processors, and hardly faster on others
// (docs/lab/cache-lines.md).
inline void fetch_lines_to_write(const std::byte* data, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += kTakeLine) {
    __builtin_prefetch(data + i, 1);
  }
}

}  // namespace collectives
