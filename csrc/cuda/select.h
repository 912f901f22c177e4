// Finds the kernel of a Choice. Make::of<Element, Operation, Order>() returns it: the address of a kernel, or in tests
// a function that does its work on the host. Each family names its combinations here, and only these are compiled.
#pragma once

#include <cstdint>

#include "cuda/elements.h"
#include "cuda/plan.h"
#include "cuda/work.h"

namespace collectives {
namespace {

template <class Make, class Element, class Operation>
typename Make::Entry by_any_order(Order order) {
  return order == Order::kChain ? Make::template of<Element, Operation, Chain>()
                                : Make::template of<Element, Operation, Trees>();
}

template <class Make, class Element, class Operation>
typename Make::Entry by_every_order(Order order) {
  switch (order) {
    case Order::kTwo:
      return Make::template of<Element, Operation, Fixed<2>>();
    case Order::kFour:
      return Make::template of<Element, Operation, Fixed<4>>();
    case Order::kEight:
      return Make::template of<Element, Operation, Fixed<8>>();
    default:
      return by_any_order<Make, Element, Operation>(order);
  }
}

template <class Make, class Element>
typename Make::Entry floating(const Choice& choice) {
  switch (choice.op) {
    case Op::kSum:
      if (choice.order == Order::kOne) return Make::template of<Element, Sum, One>();
      return by_every_order<Make, Element, Sum>(choice.order);
    case Op::kPremulSum:
      return Make::template of<Element, Scale, One>();
    case Op::kProd:
      return by_every_order<Make, Element, Product>(choice.order);
    case Op::kMin:
      return by_every_order<Make, Element, Minimum>(choice.order);
    case Op::kMax:
      return by_every_order<Make, Element, Maximum>(choice.order);
    default:
      return nullptr;
  }
}

template <class Make>
typename Make::Entry select_halves(const Choice& choice) {
  switch (choice.dtype) {
    case DType::kFloat16:
      return floating<Make, Float16>(choice);
    case DType::kBFloat16:
      return floating<Make, BFloat16>(choice);
    default:
      return nullptr;
  }
}

template <class Make>
typename Make::Entry select_floats(const Choice& choice) {
  switch (choice.dtype) {
    case DType::kFloat32:
      return floating<Make, Exact<float>>(choice);
    case DType::kFloat64:
      return floating<Make, Exact<double>>(choice);
    default:
      return nullptr;
  }
}

// No kernels for fixed numbers of sources: 8-bit floats are rarer, and have more to compute for each element anyway.
template <class Make, class Element>
typename Make::Entry float8(const Choice& choice) {
  switch (choice.op) {
    case Op::kSum:
      if (choice.order == Order::kOne) return Make::template of<Element, Sum, One>();
      return by_any_order<Make, Element, Sum>(choice.order);
    case Op::kPremulSum:
      return Make::template of<Element, Scale, One>();
    case Op::kProd:
      return by_any_order<Make, Element, Product>(choice.order);
    case Op::kMin:
      return by_any_order<Make, Element, Minimum>(choice.order);
    case Op::kMax:
      return by_any_order<Make, Element, Maximum>(choice.order);
    default:
      return nullptr;
  }
}

template <class Make>
typename Make::Entry select_float8(const Choice& choice) {
  switch (choice.dtype) {
    case DType::kFloat8E4M3FN:
      return float8<Make, Float8<E4M3FN>>(choice);
    case DType::kFloat8E5M2:
      return float8<Make, Float8<E5M2>>(choice);
    default:
      return nullptr;
  }
}

// Integers: one order will do, since it does not change the result.
template <class Make, class Wrapping, class Ordered>
typename Make::Entry integer(const Choice& choice) {
  switch (choice.op) {
    case Op::kSum:
      return Make::template of<Wrapping, Sum, Chain>();
    case Op::kProd:
      return Make::template of<Wrapping, Product, Chain>();
    case Op::kMin:
      return Make::template of<Ordered, Minimum, Chain>();
    case Op::kMax:
      return Make::template of<Ordered, Maximum, Chain>();
    default:
      return nullptr;
  }
}

// Signed and unsigned integers share sums and products, which wrap.
template <class Make>
typename Make::Entry select_integers(const Choice& choice) {
  using U8 = Exact<std::uint8_t, std::uint32_t>;
  using U16 = Exact<std::uint16_t, std::uint32_t>;
  using U32 = Exact<std::uint32_t>;
  using U64 = Exact<std::uint64_t>;
  switch (choice.dtype) {
    case DType::kInt8:
      return integer<Make, U8, Exact<std::int8_t, std::int32_t>>(choice);
    case DType::kInt16:
      return integer<Make, U16, Exact<std::int16_t, std::int32_t>>(choice);
    case DType::kInt32:
      return integer<Make, U32, Exact<std::int32_t>>(choice);
    case DType::kInt64:
      return integer<Make, U64, Exact<std::int64_t>>(choice);
    case DType::kUInt8:
      return integer<Make, U8, U8>(choice);
    case DType::kUInt16:
      return integer<Make, U16, U16>(choice);
    case DType::kUInt32:
      return integer<Make, U32, U32>(choice);
    case DType::kUInt64:
      return integer<Make, U64, U64>(choice);
    default:
      return nullptr;
  }
}

template <class Make, class Element>
typename Make::Entry bitwise(const Choice& choice) {
  switch (choice.op) {
    case Op::kLogicalAnd:
    case Op::kBitwiseAnd:
      return Make::template of<Element, And, Chain>();
    case Op::kLogicalOr:
    case Op::kBitwiseOr:
      return Make::template of<Element, Or, Chain>();
    case Op::kLogicalXor:
    case Op::kBitwiseXor:
      return Make::template of<Element, Xor, Chain>();
    default:
      return nullptr;
  }
}

template <class Make, class U, U kMagnitude, U kOne>
typename Make::Entry truth(const Choice& choice) {
  return bitwise<Make, TruthOf<U, kMagnitude, kOne>>(choice);
}

// The constants: kMagnitude, all bits of the dtype but the sign of a float, and kOne, the bits of 1.
template <class Make>
typename Make::Entry select_logical(const Choice& choice) {
  switch (choice.dtype) {
    case DType::kFloat16:
      return truth<Make, std::uint16_t, 0x7fff, 0x3c00>(choice);
    case DType::kBFloat16:
      return truth<Make, std::uint16_t, 0x7fff, 0x3f80>(choice);
    case DType::kFloat32:
      return truth<Make, std::uint32_t, 0x7fffffff, 0x3f800000>(choice);
    case DType::kFloat64:
      return truth<Make, std::uint64_t, 0x7fffffffffffffff, 0x3ff0000000000000>(choice);
    case DType::kInt8:
    case DType::kUInt8:
      return truth<Make, std::uint8_t, 0xff, 1>(choice);
    case DType::kInt16:
    case DType::kUInt16:
      return truth<Make, std::uint16_t, 0xffff, 1>(choice);
    case DType::kInt32:
    case DType::kUInt32:
      return truth<Make, std::uint32_t, 0xffffffff, 1>(choice);
    case DType::kInt64:
    case DType::kUInt64:
      return truth<Make, std::uint64_t, 0xffffffffffffffff, 1>(choice);
    case DType::kFloat8E4M3FN:
      return truth<Make, std::uint8_t, 0x7f, 0x38>(choice);
    case DType::kFloat8E5M2:
      return truth<Make, std::uint8_t, 0x7f, 0x3c>(choice);
    default:
      return nullptr;
  }
}

template <class Make>
typename Make::Entry select_bits(const Choice& choice) {
  if (!is_bitwise(choice.op)) return select_logical<Make>(choice);
  switch (choice.dtype) {
    case DType::kUInt8:
      return bitwise<Make, BitsOf<std::uint8_t>>(choice);
    case DType::kUInt16:
      return bitwise<Make, BitsOf<std::uint16_t>>(choice);
    case DType::kUInt32:
      return bitwise<Make, BitsOf<std::uint32_t>>(choice);
    case DType::kUInt64:
      return bitwise<Make, BitsOf<std::uint64_t>>(choice);
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace collectives
