// The kernels by element type and operation, written once over fixed-width vectors and compiled once per instruction
// set.
//
// A file that includes this one first includes every other header, then defines COLLECTIVES_VECTOR_BYTES, then switches
// the instruction set by pragma. Everything here has internal linkage and nothing here calls an inline function of
// another header: the linker keeps one copy of such a function, and if it kept the one compiled for AVX-512, machines
// without it would die in code that has nothing to do with this folder. For the same reason the instruction set is
// switched by pragma around the kernels alone and not by flags for the file: its static initialisers run everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/types.h"
#include "reduce/blocks.h"
#include "reduce/elements.h"
#include "reduce/loop.h"
#include "reduce/operations.h"
#include "reduce/reducer.h"
#include "reduce/reduction.h"

namespace collectives {
namespace {

// Elements that consist of kParts smaller ones, each of which is reduced by itself: the two parts of a complex number,
// the bytes of anything that is combined bit by bit.
template <std::size_t kParts, ReduceFunction kReduce>
void in_parts(void* const* destinations, int destination_count, const void* const* sources, int source_count,
              std::size_t count, double divisor) {
  kReduce(destinations, destination_count, sources, source_count, kParts * count, divisor);
}

template <class Element>
ReduceFunction sum_kernel(Op op, bool finish) {
  return op == Op::kAvg && finish ? reduce<Element, Sum, true> : reduce<Element, Sum, false>;
}

template <std::size_t kElementBytes, class Operation>
constexpr ReduceFunction bitwise_kernel() {
  using Byte = Plain<std::uint8_t>;
  if constexpr (kElementBytes == 1) {
    return reduce<Byte, Operation, false>;
  } else {
    return in_parts<kElementBytes, reduce<Byte, Operation, false>>;
  }
}

template <class U, U kMagnitude, U kOne, class Operation>
ReduceFunction logical_kernel() {
  return by_blocks<TruthBlocks<U, kMagnitude, kOne>, bitwise_kernel<sizeof(U), Operation>()>;
}

// U: an unsigned integer of the size of the type. kMagnitude: its bits but for the sign. kOne: the bits of 1.
template <class Element, class U, U kMagnitude, U kOne>
ReduceFunction floating_kernel(Op op, bool finish) {
  switch (op) {
    case Op::kSum:
    case Op::kAvg:
    case Op::kPremulSum:
      return sum_kernel<Element>(op, finish);
    case Op::kProd:
      return reduce<Element, Product, false>;
    case Op::kMin:
      return reduce<Element, Minimum, false>;
    case Op::kMax:
      return reduce<Element, Maximum, false>;
    case Op::kLogicalAnd:
      return logical_kernel<U, kMagnitude, kOne, And>();
    case Op::kLogicalOr:
      return logical_kernel<U, kMagnitude, kOne, Or>();
    case Op::kLogicalXor:
      return logical_kernel<U, kMagnitude, kOne, Xor>();
    case Op::kBitwiseAnd:
    case Op::kBitwiseOr:
    case Op::kBitwiseXor:
      break;
  }
  return nullptr;
}

// By blocks: kernels of their own would have the code of the conversions once per source and operation.
template <class Element, std::uint8_t kOne>
ReduceFunction float8_kernel(Op op, bool finish) {
  using Blocks = WideBlocks<Element>;
  using Float = Plain<float>;
  switch (op) {
    case Op::kAvg:
      if (finish) return by_blocks<Blocks, reduce<Float, Sum, false>, reduce<Float, Sum, true>>;
      [[fallthrough]];
    case Op::kSum:
    case Op::kPremulSum:
      return by_blocks<Blocks, reduce<Float, Sum, false>>;
    case Op::kProd:
      return by_blocks<Blocks, reduce<Float, Product, false>>;
    case Op::kMin:
      return by_blocks<Blocks, reduce<Float, Minimum, false>>;
    case Op::kMax:
      return by_blocks<Blocks, reduce<Float, Maximum, false>>;
    case Op::kLogicalAnd:
      return logical_kernel<std::uint8_t, 0x7f, kOne, And>();
    case Op::kLogicalOr:
      return logical_kernel<std::uint8_t, 0x7f, kOne, Or>();
    case Op::kLogicalXor:
      return logical_kernel<std::uint8_t, 0x7f, kOne, Xor>();
    case Op::kBitwiseAnd:
    case Op::kBitwiseOr:
    case Op::kBitwiseXor:
      break;
  }
  return nullptr;
}

// T: the type of one part.
template <class T>
ReduceFunction complex_kernel(Op op, bool finish) {
  switch (op) {
    case Op::kAvg:
      if (finish) return in_parts<2, reduce<Plain<T>, Sum, true>>;
      [[fallthrough]];
    case Op::kSum:
    case Op::kPremulSum:
      return in_parts<2, reduce<Plain<T>, Sum, false>>;
    default:
      return nullptr;
  }
}

// Sums and products wrap, so signed and unsigned integers share theirs.
template <class Wrapping, class Ordered>
ReduceFunction integer_kernel(Op op) {
  constexpr std::size_t kSize = sizeof(Wrapping);
  constexpr auto kAll = static_cast<Wrapping>(-1);
  switch (op) {
    case Op::kSum:
      return reduce<Plain<Wrapping>, Sum, false>;
    case Op::kProd:
      return reduce<Plain<Wrapping>, Product, false>;
    case Op::kMin:
      return reduce<Plain<Ordered>, Minimum, false>;
    case Op::kMax:
      return reduce<Plain<Ordered>, Maximum, false>;
    case Op::kLogicalAnd:
      return logical_kernel<Wrapping, kAll, 1, And>();
    case Op::kLogicalOr:
      return logical_kernel<Wrapping, kAll, 1, Or>();
    case Op::kLogicalXor:
      return logical_kernel<Wrapping, kAll, 1, Xor>();
    case Op::kBitwiseAnd:
      return bitwise_kernel<kSize, And>();
    case Op::kBitwiseOr:
      return bitwise_kernel<kSize, Or>();
    case Op::kBitwiseXor:
      return bitwise_kernel<kSize, Xor>();
    case Op::kAvg:
    case Op::kPremulSum:
      break;
  }
  return nullptr;
}

// The bytes of a bool are 0 or 1, as C++ and NumPy have them.
ReduceFunction bool_kernel(Op op) {
  switch (op) {
    case Op::kSum:
    case Op::kMax:
    case Op::kLogicalOr:
    case Op::kBitwiseOr:
      return bitwise_kernel<1, Or>();
    case Op::kProd:
    case Op::kMin:
    case Op::kLogicalAnd:
    case Op::kBitwiseAnd:
      return bitwise_kernel<1, And>();
    case Op::kLogicalXor:
    case Op::kBitwiseXor:
      return bitwise_kernel<1, Xor>();
    case Op::kAvg:
    case Op::kPremulSum:
      break;
  }
  return nullptr;
}

template <class Element, std::size_t kParts = 1>
void scale_elements(void* destination, const void* source, std::size_t count, double factor) {
  // Conversions count on NaNs without a payload.
  const double operand = factor == factor ? factor : __builtin_nan("");
  fixed<Element, Element, Scale, true, 1, 1>(&destination, &source, 0, 0, kParts * count, operand);
}

// The kernels of a kind of elements: to combine by an op, and to multiply by a factor.
template <class Element, class U, U kMagnitude, U kOne>
struct Floating {
  static ReduceFunction reduction(Op op, bool finish) {
    return floating_kernel<Element, U, kMagnitude, kOne>(op, finish);
  }
  static ScaleFunction scaling() { return scale_elements<Element>; }
};

template <class Element, std::uint8_t kOne>
struct EightBits {
  static ReduceFunction reduction(Op op, bool finish) { return float8_kernel<Element, kOne>(op, finish); }
  static ScaleFunction scaling() { return scale_elements<Element>; }
};

template <class T>
struct Complex {
  static ReduceFunction reduction(Op op, bool finish) { return complex_kernel<T>(op, finish); }
  static ScaleFunction scaling() { return scale_elements<Plain<T>, 2>; }
};

template <class Wrapping, class Ordered>
struct Integer {
  static ReduceFunction reduction(Op op, bool /*finish*/) { return integer_kernel<Wrapping, Ordered>(op); }
  static ScaleFunction scaling() { return nullptr; }
};

struct Boolean {
  static ReduceFunction reduction(Op op, bool /*finish*/) { return bool_kernel(op); }
  static ScaleFunction scaling() { return nullptr; }
};

// Those of each row of core/dtypes.h.
template <DType kDType>
struct KernelsOf;
// clang-format off
template <> struct KernelsOf<DType::kFloat16> : Floating<Float16, std::uint16_t, 0x7fff, 0x3c00> {};
template <> struct KernelsOf<DType::kBFloat16> : Floating<BFloat16, std::uint16_t, 0x7fff, 0x3f80> {};
template <> struct KernelsOf<DType::kFloat32> : Floating<Plain<float>, std::uint32_t, 0x7fffffff, 0x3f800000> {};
template <> struct KernelsOf<DType::kFloat64>
    : Floating<Plain<double>, std::uint64_t, 0x7fffffffffffffff, 0x3ff0000000000000> {};
template <> struct KernelsOf<DType::kInt8> : Integer<std::uint8_t, std::int8_t> {};
template <> struct KernelsOf<DType::kInt16> : Integer<std::uint16_t, std::int16_t> {};
template <> struct KernelsOf<DType::kInt32> : Integer<std::uint32_t, std::int32_t> {};
template <> struct KernelsOf<DType::kInt64> : Integer<std::uint64_t, std::int64_t> {};
template <> struct KernelsOf<DType::kUInt8> : Integer<std::uint8_t, std::uint8_t> {};
template <> struct KernelsOf<DType::kUInt16> : Integer<std::uint16_t, std::uint16_t> {};
template <> struct KernelsOf<DType::kUInt32> : Integer<std::uint32_t, std::uint32_t> {};
template <> struct KernelsOf<DType::kUInt64> : Integer<std::uint64_t, std::uint64_t> {};
template <> struct KernelsOf<DType::kBool> : Boolean {};
template <> struct KernelsOf<DType::kComplex64> : Complex<float> {};
template <> struct KernelsOf<DType::kComplex128> : Complex<double> {};
template <> struct KernelsOf<DType::kFloat8E4M3FN> : EightBits<Float8E4M3FN, 0x38> {};
template <> struct KernelsOf<DType::kFloat8E5M2> : EightBits<Float8E5M2, 0x3c> {};
// clang-format on

ReduceFunction kernel(DType dtype, Op op, bool finish) {
  switch (dtype) {
#define COLLECTIVES_CASE(enumerator, ...) \
  case DType::enumerator:                 \
    return KernelsOf<DType::enumerator>::reduction(op, finish);
    COLLECTIVES_DTYPES(COLLECTIVES_CASE)
#undef COLLECTIVES_CASE
  }
  return nullptr;
}

ScaleFunction scale(DType dtype) {
  switch (dtype) {
#define COLLECTIVES_CASE(enumerator, ...) \
  case DType::enumerator:                 \
    return KernelsOf<DType::enumerator>::scaling();
    COLLECTIVES_DTYPES(COLLECTIVES_CASE)
#undef COLLECTIVES_CASE
  }
  return nullptr;
}

}  // namespace
}  // namespace collectives
