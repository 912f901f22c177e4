// Copies whose destination nobody reads soon.
//
// An ordinary store fetches the line that it writes from memory first. Of results that are larger than the caches that
// is a third of all traffic, so their lines are written past the caches: with all_to_all of 32 MiB by a third faster,
// see docs/lab/copies.md. In caches it is slower. (Of an all-reduce in place, the lines of the result are in a cache,
// since they have just been read; there it depends on the processor: cpu/processor.h.)
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "cpu/take.h"

namespace collectives {

// What the ranks of a host read and write together, from where on it does not stay in the caches that a few cores
// share. Results that go to memory of their own come earlier: the lines of the others are in caches when they are
// written.
inline constexpr std::int64_t kStreamingWhole = 32 << 20;
inline constexpr std::int64_t kStreamingApart = 16 << 20;

#if defined(__SSE2__)

// One line; `destination` begins one.
inline void stream_line(std::byte* destination, const std::byte* source) {
  const auto* from = reinterpret_cast<const __m128i*>(source);
  auto* to = reinterpret_cast<__m128i*>(destination);
  const __m128i values[] = {_mm_loadu_si128(from), _mm_loadu_si128(from + 1), _mm_loadu_si128(from + 2),
                            _mm_loadu_si128(from + 3)};
  for (int i = 0; i < 4; ++i) {
    _mm_stream_si128(to + i, values[i]);
  }
}

// memcpy past the caches. take: as copy_taking() does with the lines of the source.
inline void copy_streaming(std::byte* destination, std::byte* source, std::int64_t bytes, bool take) {
  const auto ordinary = [&](std::int64_t from, std::int64_t count) {
    if (take) {
      copy_taking(destination + from, source + from, count);
    } else {
      std::memcpy(destination + from, source + from, count);
    }
  };
  const auto address = reinterpret_cast<std::uintptr_t>(destination);
  const auto before = static_cast<std::int64_t>(-address % kTakeLine);
  std::int64_t i = std::min(before, bytes);
  ordinary(0, i);
  for (; i + kTakeLine <= bytes; i += kTakeLine) {
    stream_line(destination + i, source + i);
    if (take) {
      take_lines(source + i, kTakeLine);
    }
  }
  ordinary(i, bytes - i);
  _mm_sfence();  // such stores are ordered with nothing else
}

#else

inline void copy_streaming(std::byte* destination, std::byte* source, std::int64_t bytes, bool take) {
  if (take) {
    copy_taking(destination, source, bytes);
  } else {
    std::memcpy(destination, source, bytes);
  }
}

#endif

}  // namespace collectives
