// A hash of numbers that ranks compare: the one of Fowler, Noll and Vo, a number at a time.
#pragma once

#include <cstdint>

namespace collectives {

inline constexpr std::uint64_t kHashStart = 14695981039346656037ULL;

constexpr std::uint64_t hash_with(std::uint64_t hash, std::int64_t value) {
  constexpr std::uint64_t kPrime = 1099511628211ULL;
  return (hash ^ static_cast<std::uint64_t>(value)) * kPrime;
}

}  // namespace collectives
