// The page in which a process shows its Python stack, as it and those that ask see it: see stacks.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace collectives {

inline constexpr std::size_t kNonceBytes = 32;  // hexadecimal digits
inline constexpr std::size_t kPageBytes = 32 << 10;

struct StackPage {
  char nonce[kNonceBytes];
  std::atomic<std::uint32_t> handled;  // the signal has our handler
  std::atomic<std::uint32_t> asked;    // how often
  // Odd while a thread writes what follows, so that readers know whether they have all of one text.
  std::atomic<std::uint32_t> version;
  std::atomic<std::uint32_t> answered;  // the value of `asked` that the text is for
  std::atomic<std::uint32_t> thread;    // whose stack it is
  std::atomic<std::uint32_t> bytes;
  char text[kPageBytes - kNonceBytes - 24];
};
static_assert(sizeof(StackPage) == kPageBytes);

}  // namespace collectives
