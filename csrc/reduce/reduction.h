// The reduction of any number of sources to any number of destinations. Part of kernels.h; see there for the rules that
// this file keeps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/elements.h"
#include "reduce/loop.h"
#include "reduce/operations.h"

namespace collectives {
namespace {

// Sources up to this number have a loop of their own.
inline constexpr int kFixedSources = 8;

// Elements of a block of partial results: small enough that a few blocks stay in the first-level cache.
inline constexpr std::size_t kPartialElements = 512;

// So much is copied to further destinations at a time, while it is in the first-level cache.
inline constexpr std::size_t kCopyBytes = 8192;

// The partial result of `n` > kFixedSources / 2 sources for a block of at most kPartialElements elements.
template <class Element, class Operation>
void partial(typename Element::Value* out, const void* const* sources, int n, std::size_t from, std::size_t count) {
  using Partial = typename Element::Partial;
  void* destination = out;
  static_assert(kFixedSources == 8);
  switch (n) {
    case 4:
      return fixed<Element, Partial, Operation, false, 4, 1>(&destination, sources, 0, from, count, 1);
    case 5:
      return fixed<Element, Partial, Operation, false, 5, 1>(&destination, sources, 0, from, count, 1);
    case 6:
      return fixed<Element, Partial, Operation, false, 6, 1>(&destination, sources, 0, from, count, 1);
    case 7:
      return fixed<Element, Partial, Operation, false, 7, 1>(&destination, sources, 0, from, count, 1);
    case 8:
      return fixed<Element, Partial, Operation, false, 8, 1>(&destination, sources, 0, from, count, 1);
    default:
      break;
  }
  alignas(64) typename Element::Value right[kPartialElements];
  const int left_sources = middle(0, n);
  partial<Element, Operation>(out, sources, left_sources, from, count);
  partial<Element, Operation>(right, sources + left_sources, n - left_sources, from, count);
  const void* halves[] = {out, right};
  fixed<Partial, Partial, Operation, false, 2, 1>(&destination, halves, 0, 0, count, 1);
}

// More than kFixedSources sources: block by block, the two halves of the tree into partial results, then their union.
template <class Element, class Operation, bool kDivide, int kDestinations>
__attribute__((noinline)) void many(void* const* destinations, const void* const* sources, int n, std::size_t begin,
                                    std::size_t count, double divisor) {
  using Partial = typename Element::Partial;
  alignas(64) typename Element::Value left[kPartialElements];
  alignas(64) typename Element::Value right[kPartialElements];
  const void* halves[] = {left, right};
  const int left_sources = middle(0, n);
  for (std::size_t i = begin, end = begin + count; i < end; i += kPartialElements) {
    const std::size_t size = end - i < kPartialElements ? end - i : kPartialElements;
    partial<Element, Operation>(left, sources, left_sources, i, size);
    partial<Element, Operation>(right, sources + left_sources, n - left_sources, i, size);
    fixed<Partial, Element, Operation, kDivide, 2, kDestinations>(destinations, halves, i, 0, size, divisor);
  }
}

// Elements [begin, begin + count) of any number of sources.
template <class Element, class Operation, bool kDivide, int kDestinations>
COLLECTIVES_INLINE void range(void* const* destinations, const void* const* sources, int n, std::size_t begin,
                              std::size_t count, double divisor) {
  using E = Element;
  using O = Operation;
  constexpr int kD = kDestinations;
  switch (n) {
    case 1:  // without a division this is a copy, which takes another path
      if constexpr (kDivide) fixed<E, E, O, true, 1, kD>(destinations, sources, begin, begin, count, divisor);
      return;
    case 2:
      return fixed<E, E, O, kDivide, 2, kD>(destinations, sources, begin, begin, count, divisor);
    case 3:
      return fixed<E, E, O, kDivide, 3, kD>(destinations, sources, begin, begin, count, divisor);
    case 4:
      return fixed<E, E, O, kDivide, 4, kD>(destinations, sources, begin, begin, count, divisor);
    case 5:
      return fixed<E, E, O, kDivide, 5, kD>(destinations, sources, begin, begin, count, divisor);
    case 6:
      return fixed<E, E, O, kDivide, 6, kD>(destinations, sources, begin, begin, count, divisor);
    case 7:
      return fixed<E, E, O, kDivide, 7, kD>(destinations, sources, begin, begin, count, divisor);
    case 8:
      return fixed<E, E, O, kDivide, 8, kD>(destinations, sources, begin, begin, count, divisor);
    default:
      return many<E, O, kDivide, kD>(destinations, sources, n, begin, count, divisor);
  }
}

// Bytes [begin, end) of `source` to every destination, skipping those that are the source: writing a line back
// unchanged would still invalidate it in the caches of other cores.
__attribute__((noinline)) void copy_bytes(void* const* destinations, int destination_count, const void* source,
                                          std::size_t begin, std::size_t end) {
  using Byte = Plain<std::uint8_t>;
  const std::size_t step = destination_count > 1 ? kCopyBytes : end - begin;
  for (std::size_t i = begin; i < end; i += step) {
    const std::size_t size = end - i < step ? end - i : step;
    for (int d = 0; d < destination_count; ++d) {
      if (destinations[d] != source) fixed<Byte, Byte, Sum, false, 1, 1>(destinations + d, &source, i, i, size, 1);
    }
  }
}

// As many destinations as sources, 3 to kFixedSources: so it is where each rank reduces one part of an array for all.
template <class E, class O, bool kDivide>
COLLECTIVES_INLINE void to_all(void* const* destinations, const void* const* sources, int n, std::size_t count,
                               double divisor) {
  static_assert(kFixedSources == 8);
  switch (n) {
    case 3:
      return fixed<E, E, O, kDivide, 3, 3>(destinations, sources, 0, 0, count, divisor);
    case 4:
      return fixed<E, E, O, kDivide, 4, 4>(destinations, sources, 0, 0, count, divisor);
    case 5:
      return fixed<E, E, O, kDivide, 5, 5>(destinations, sources, 0, 0, count, divisor);
    case 6:
      return fixed<E, E, O, kDivide, 6, 6>(destinations, sources, 0, 0, count, divisor);
    case 7:
      return fixed<E, E, O, kDivide, 7, 7>(destinations, sources, 0, 0, count, divisor);
    default:
      return fixed<E, E, O, kDivide, 8, 8>(destinations, sources, 0, 0, count, divisor);
  }
}

// Other numbers of destinations above two: reduce a block to the first, then copy it to the others. These may be
// sources, too: the block has been read by then.
template <class Element, class Operation, bool kDivide>
__attribute__((noinline)) void spread(void* const* destinations, int destination_count, const void* const* sources,
                                      int n, std::size_t count, double divisor) {
  constexpr std::size_t kSize = sizeof(typename Element::Stored);
  constexpr std::size_t kBlock = kCopyBytes / kSize;
  for (std::size_t i = 0; i < count; i += kBlock) {
    const std::size_t size = count - i < kBlock ? count - i : kBlock;
    range<Element, Operation, kDivide, 1>(destinations, sources, n, i, size, divisor);
    copy_bytes(destinations + 1, destination_count - 1, destinations[0], i * kSize, (i + size) * kSize);
  }
}

// The kernel itself. Not inlined, because other kernels are made of it.
template <class Element, class Operation, bool kDivide>
__attribute__((noinline)) void reduce(void* const* destinations, int destination_count, const void* const* sources,
                                      int source_count, std::size_t count, double divisor) {
  if (source_count < 1 || destination_count < 1) return;
  if (!kDivide && source_count == 1) {
    return copy_bytes(destinations, destination_count, sources[0], 0, count * sizeof(typename Element::Stored));
  }
  if (destination_count == 1) {
    return range<Element, Operation, kDivide, 1>(destinations, sources, source_count, 0, count, divisor);
  }
  if (destination_count == 2) {
    return range<Element, Operation, kDivide, 2>(destinations, sources, source_count, 0, count, divisor);
  }
  if (destination_count == source_count && source_count <= kFixedSources) {
    return to_all<Element, Operation, kDivide>(destinations, sources, source_count, count, divisor);
  }
  spread<Element, Operation, kDivide>(destinations, destination_count, sources, source_count, count, divisor);
}

}  // namespace
}  // namespace collectives
