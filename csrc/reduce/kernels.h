// The kernels, written once over fixed-width vectors and compiled once per instruction set.
//
// A file that includes this one first includes every other header, then defines COLLECTIVES_VECTOR_BYTES, then switches
// the instruction set by pragma. Everything here has internal linkage and nothing here calls an inline function of
// another header: the linker keeps one copy of such a function, and if it kept the one compiled for AVX-512, machines
// without it would die in code that has nothing to do with this folder. For the same reason the instruction set is
// switched by pragma around the kernels alone and not by flags for the file: its static initialisers run everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/reducer.h"
#include "core/types.h"
#include "reduce/elements.h"
#include "reduce/loop.h"
#include "reduce/operations.h"

namespace collectives {
namespace {

// Sources up to this number have a loop of their own.
inline constexpr int kFixedSources = 8;

// Elements of a block of partial results: small enough that a few blocks stay in the first-level cache.
inline constexpr std::size_t kPartialElements = 512;

// What is copied on to further destinations at a time, while it is in the first-level cache.
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
// unchanged would still take it away from whoever else has it in a cache.
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

// More than two destinations: reduce a block to the first, then copy it on. A further destination may be a source too:
// the block has been read by then.
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

// The kernel itself.
template <class Element, class Operation, bool kDivide>
void reduce(void* const* destinations, int destination_count, const void* const* sources, int source_count,
            std::size_t count, double divisor) {
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
  spread<Element, Operation, kDivide>(destinations, destination_count, sources, source_count, count, divisor);
}

template <class Element>
ReduceFunction floating_kernel(Op op, bool finish) {
  switch (op) {
    case Op::kSum:
      return reduce<Element, Sum, false>;
    case Op::kAvg:
      return finish ? reduce<Element, Sum, true> : reduce<Element, Sum, false>;
    case Op::kProd:
      return reduce<Element, Product, false>;
    case Op::kMin:
      return reduce<Element, Minimum, false>;
    case Op::kMax:
      return reduce<Element, Maximum, false>;
  }
  return nullptr;
}

// Sums and products wrap, so signed and unsigned integers share theirs.
template <class Wrapping, class Ordered>
ReduceFunction integer_kernel(Op op) {
  switch (op) {
    case Op::kSum:
      return reduce<Plain<Wrapping>, Sum, false>;
    case Op::kAvg:
      return nullptr;
    case Op::kProd:
      return reduce<Plain<Wrapping>, Product, false>;
    case Op::kMin:
      return reduce<Plain<Ordered>, Minimum, false>;
    case Op::kMax:
      return reduce<Plain<Ordered>, Maximum, false>;
  }
  return nullptr;
}

// The bytes of a bool are 0 or 1, as C++ and NumPy have them.
ReduceFunction bool_kernel(Op op) {
  switch (op) {
    case Op::kAvg:
      return nullptr;
    case Op::kSum:
    case Op::kMax:
      return reduce<Plain<std::uint8_t>, Or, false>;
    case Op::kProd:
    case Op::kMin:
      return reduce<Plain<std::uint8_t>, And, false>;
  }
  return nullptr;
}

ReduceFunction kernel(DType dtype, Op op, bool finish) {
  switch (dtype) {
    case DType::kFloat16:
      return floating_kernel<Float16>(op, finish);
    case DType::kBFloat16:
      return floating_kernel<BFloat16>(op, finish);
    case DType::kFloat32:
      return floating_kernel<Plain<float>>(op, finish);
    case DType::kFloat64:
      return floating_kernel<Plain<double>>(op, finish);
    case DType::kInt8:
      return integer_kernel<std::uint8_t, std::int8_t>(op);
    case DType::kInt16:
      return integer_kernel<std::uint16_t, std::int16_t>(op);
    case DType::kInt32:
      return integer_kernel<std::uint32_t, std::int32_t>(op);
    case DType::kInt64:
      return integer_kernel<std::uint64_t, std::int64_t>(op);
    case DType::kUInt8:
      return integer_kernel<std::uint8_t, std::uint8_t>(op);
    case DType::kUInt16:
      return integer_kernel<std::uint16_t, std::uint16_t>(op);
    case DType::kUInt32:
      return integer_kernel<std::uint32_t, std::uint32_t>(op);
    case DType::kUInt64:
      return integer_kernel<std::uint64_t, std::uint64_t>(op);
    case DType::kBool:
      return bool_kernel(op);
  }
  return nullptr;
}

}  // namespace
}  // namespace collectives
