// Vectors of any width, and their way from and to memory. Part of kernels.h; see there for the rules that this file
// keeps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/operators.h"

namespace collectives {
namespace {

template <class T, int kBytes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kBytes)));  // NOLINT(modernize-use-using): `using` loses the attribute
};
template <class T, int kBytes>
using Vector = typename VectorOf<T, kBytes>::Type;

// The width of the narrowest vectors, and the one that stands for "one element, in the first lane of the narrowest
// vector": with it the last elements take the very same path as all others, and there are no scalar kernels.
inline constexpr int kLeastBytes = 16;
inline constexpr int kOneElement = 1;

// The values of 16-bit elements are twice as wide as the elements, and those of 8-bit floats four times: a pair of
// pairs.
template <class V>
struct Pair {
  V first, second;
};

template <int kBytes>
using Bits = Vector<std::uint32_t, kBytes>;
template <int kBytes>
using Floats = Vector<float, kBytes>;

// The values of kBytes of elements.
template <std::size_t kElementBytes, int kBytes>
struct WideOf {
  using Type = Pair<Floats<kBytes>>;
};
template <int kBytes>
struct WideOf<1, kBytes> {
  using Type = Pair<Pair<Floats<kBytes>>>;
};
template <std::size_t kElementBytes, int kBytes>
using Wide = typename WideOf<kElementBytes, kBytes>::Type;

template <class V>
COLLECTIVES_INLINE V load_vector(const void* from) {
  V result;
  __builtin_memcpy(&result, from, sizeof(result));
  return result;
}

template <class V>
COLLECTIVES_INLINE void store_vector(void* to, V value) {
  __builtin_memcpy(to, &value, sizeof(value));
}

// Copies `bytes` < kLeastBytes bytes into a whole vector (the rest becomes zero), and back. Reading two overlapping
// words instead of looping makes a tail of 7 elements as fast as one of 4.
__attribute__((noinline)) void gather_tail(void* to, const void* from, std::size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(from);
  Vector<std::uint64_t, kLeastBytes> result = {0, 0};
  if (bytes >= 8) {
    result[0] = load_vector<std::uint64_t>(p);
    if (bytes > 8) result[1] = load_vector<std::uint64_t>(p + bytes - 8) >> (8 * (16 - bytes));
  } else if (bytes >= 4) {
    const std::uint64_t end = load_vector<std::uint32_t>(p + bytes - 4);
    result[0] = load_vector<std::uint32_t>(p) | end << (8 * (bytes - 4));
  } else if (bytes >= 2) {
    const std::uint64_t end = load_vector<std::uint16_t>(p + bytes - 2);
    result[0] = load_vector<std::uint16_t>(p) | end << (8 * (bytes - 2));
  } else if (bytes == 1) {
    result[0] = *p;
  }
  store_vector(to, result);
}

__attribute__((noinline)) void scatter_tail(void* to, const void* from, std::size_t bytes) {
  auto* p = static_cast<unsigned char*>(to);
  const auto value = load_vector<Vector<std::uint64_t, kLeastBytes>>(from);
  const std::uint64_t low = value[0];
  if (bytes >= 8) {
    store_vector(p, low);
    const std::size_t rest = 8 * (bytes - 8);
    if (rest > 0) store_vector(p + bytes - 8, low >> rest | value[1] << (64 - rest));
  } else if (bytes >= 4) {
    store_vector(p, static_cast<std::uint32_t>(low));
    store_vector(p + bytes - 4, static_cast<std::uint32_t>(low >> (8 * (bytes - 4))));
  } else if (bytes >= 2) {
    store_vector(p, static_cast<std::uint16_t>(low));
    store_vector(p + bytes - 2, static_cast<std::uint16_t>(low >> (8 * (bytes - 2))));
  } else if (bytes == 1) {
    *p = static_cast<unsigned char>(low);
  }
}

}  // namespace
}  // namespace collectives
