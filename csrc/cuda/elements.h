// How elements lie in memory, and the values they are computed with.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "reduce/float8_codes.h"
#include "reduce/operators.h"

namespace collectives {
namespace {

// Elements that are computed with exactly as they are stored; integers below 32 bits as 32 bits. Pack: the element type
// by which packs are computed, if another one is faster. kPackBytes: what a thread reads of a source at once.
template <class S, class V = S, class P = void>
struct Exact {
  using Stored = S;
  using Value = V;
  using Pack = P;
  static constexpr bool kNarrow = false;
  static constexpr int kPackBytes = 16;
  COLLECTIVES_INLINE static Value decode(Stored stored) { return static_cast<Value>(stored); }
  COLLECTIVES_INLINE static Stored encode(Value value) { return static_cast<Stored>(value); }
};
template <class S, class V>
struct Exact<S, V, void> : Exact<S, V, int> {
  using Pack = Exact;
};

template <class U>
struct WideOf {
  using Type = std::uint32_t;
};
template <>
struct WideOf<std::uint64_t> {
  using Type = std::uint64_t;
};

// Elements that are combined bit by bit, so that packs can be computed as 32-bit words.
template <class U>
using BitsOf = Exact<U, typename WideOf<U>::Type, Exact<std::uint32_t>>;

// Elements taken as false or true: decoded to 0 or kOne, which are closed under `and`, `or` and `xor` of their bits.
template <class U, U kMagnitude, U kOne>
struct TruthOf {
  using Stored = U;
  using Value = typename WideOf<U>::Type;
  using Pack = TruthOf;
  static constexpr bool kNarrow = false;
  static constexpr int kPackBytes = 16;
  COLLECTIVES_INLINE static Value decode(Stored stored) {
    return Truth<Value, kMagnitude, kOne>::finish(static_cast<Value>(stored), 0);
  }
  COLLECTIVES_INLINE static Stored encode(Value value) { return static_cast<Stored>(value); }
};

// Floats of 16 or 8 bits: computed with as float32, and rounded when they are stored.
struct Float16 {
  using Stored = std::uint16_t;
  using Value = float;
  using Pack = Float16;
  static constexpr bool kNarrow = true;
  static constexpr int kPackBytes = 16;
  COLLECTIVES_INLINE static float decode(Stored stored) { return __half2float(__ushort_as_half(stored)); }
  COLLECTIVES_INLINE static Stored encode(float value) { return __half_as_ushort(__float2half_rn(value)); }
};

struct BFloat16 {
  using Stored = std::uint16_t;
  using Value = float;
  using Pack = BFloat16;
  static constexpr bool kNarrow = true;
  static constexpr int kPackBytes = 16;
  COLLECTIVES_INLINE static float decode(Stored stored) { return __bfloat162float(__ushort_as_bfloat16(stored)); }
  COLLECTIVES_INLINE static Stored encode(float value) { return __bfloat16_as_ushort(__float2bfloat16_rn(value)); }
};

// Converted in software: the instructions of the GPU saturate at the largest number instead of overflowing.
template <class Format>
struct Float8 {
  using Stored = std::uint8_t;
  using Value = float;
  using Pack = Float8;
  using Codes = Float8Codes<Format, float>;
  static constexpr bool kNarrow = true;
  static constexpr int kPackBytes = 8;  // the values of 16 would need more registers than there are
  COLLECTIVES_INLINE static float decode(Stored stored) {
    return Codes::widen_top(static_cast<std::uint32_t>(stored) << 24);
  }
  COLLECTIVES_INLINE static Stored encode(float value) {
    return static_cast<Stored>(Codes::code(value) | (Lanes<float>::bits(value) >> 24 & 0x80u));
  }
};

}  // namespace
}  // namespace collectives
