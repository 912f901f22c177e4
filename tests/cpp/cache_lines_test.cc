// Copies that acquire ownership of the lines that they read, and copies past the caches, give what memcpy gives and
// touch nothing else. On a processor on which neither pays, only this test runs them.

#include "cpu/cache_lines.h"

#include <cstdio>
#include <vector>

#include "cpu/streaming.h"

namespace {

using namespace collectives;

constexpr std::int64_t kGuard = 64;
constexpr std::int64_t kMost = 300;
constexpr auto kAround = std::byte{0xEE};

std::byte value(std::int64_t i) { return static_cast<std::byte>(i * 7 % 251); }

template <class Copy>
bool copies(const Copy& copy, std::int64_t from, std::int64_t to, std::int64_t bytes) {
  std::vector<std::byte> source(static_cast<std::size_t>(kMost + 2 * kGuard));
  for (std::size_t i = 0; i < source.size(); ++i) {
    source[i] = value(static_cast<std::int64_t>(i));
  }
  const std::vector<std::byte> before = source;
  std::vector<std::byte> destination(source.size(), kAround);
  copy(destination.data() + to, source.data() + from, bytes);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(destination.size()); ++i) {
    const bool inside = i >= to && i < to + bytes;
    if (destination[static_cast<std::size_t>(i)] != (inside ? value(i - to + from) : kAround)) {
      return false;
    }
  }
  return source == before;
}

int failures(const char* name, auto&& copy) {
  int wrong = 0;
  for (const std::int64_t from : {0, 1, 33}) {
    for (const std::int64_t to : {0, 5, 63}) {
      for (std::int64_t bytes = 0; bytes <= kMost; ++bytes) {
        if (!copies(copy, from, to, bytes)) {
          std::fprintf(stderr, "FAILED: %s of %lld bytes from %lld to %lld\n", name, static_cast<long long>(bytes),
                       static_cast<long long>(from), static_cast<long long>(to));
          ++wrong;
        }
      }
    }
  }
  return wrong;
}

}  // namespace

int main() {
  const int wrong = failures("copy_and_own", copy_and_own) + failures("copy_by_string", copy_by_string) +
                    failures("copy_streaming", [](std::byte* to, std::byte* from,
                                                  std::int64_t n) { copy_streaming(to, from, n, false); }) +
                    failures("copy_streaming that takes",
                             [](std::byte* to, std::byte* from, std::int64_t n) { copy_streaming(to, from, n, true); });
  return wrong == 0 ? 0 : 1;
}
