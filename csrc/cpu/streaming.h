// Copies whose destination is not read soon.
//
// An ordinary store first fetches from memory the line that it writes. For results that are larger than the caches that
// is a third of all traffic, so their lines are written past the caches: an all_to_all of 32 MiB takes a third less
// time (docs/lab/copies.md). For results that fit into the caches it is slower. The result of an all-reduce in place
// has its lines in a cache, since they have just been read; there it depends on the processor (cpu/processor.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "cpu/cache_lines.h"

namespace collectives {

// From here on, what the ranks of a host read and write together does not stay in the caches that a few cores share.
// Vector collectives, whose results always go to memory of their own, reach that point with less: the results of dense
// ones may have their lines in caches when they are written.
inline constexpr std::int64_t kStreamingDense = 32 << 20;
inline constexpr std::int64_t kStreamingVector = 16 << 20;

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

// memcpy past the caches. own: acquires ownership of the lines of the source, as copy_and_own() does.
inline void copy_streaming(std::byte* destination, std::byte* source, std::int64_t bytes, bool own) {
  const auto ordinary = [&](std::int64_t from, std::int64_t count) {
    if (own) {
      copy_and_own(destination + from, source + from, count);
    } else {
      std::memcpy(destination + from, source + from, count);
    }
  };
  const auto address = reinterpret_cast<std::uintptr_t>(destination);
  const auto before = static_cast<std::int64_t>(-address % kLineBytes);
  std::int64_t i = std::min(before, bytes);
  ordinary(0, i);
  for (; i + kLineBytes <= bytes; i += kLineBytes) {
    stream_line(destination + i, source + i);
    if (own) {
      own_read_lines(source + i, kLineBytes);
    }
  }
  ordinary(i, bytes - i);
  _mm_sfence();  // such stores are ordered with nothing else
}

#else

inline void copy_streaming(std::byte* destination, std::byte* source, std::int64_t bytes, bool own) {
  if (own) {
    copy_and_own(destination, source, bytes);
  } else {
    std::memcpy(destination, source, bytes);
  }
}

#endif

}  // namespace collectives
