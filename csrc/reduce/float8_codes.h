// 8-bit floats to float32 and back, rounding to nearest even: the arithmetic, for vectors on CPUs (float8.h) and for
// single values on GPUs (cuda/). On CPUs part of kernels.h; see there for the rules that this file keeps. As with
// halves, no step depends on subnormal numbers of float32.
//
// Formats: P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022. What is too large becomes what float32's
// infinity becomes, as in ml_dtypes.
#pragma once

#include <cstdint>

#include "reduce/operators.h"

namespace collectives {
namespace {

// 4 bits of exponent, no infinity, and one NaN.
struct E4M3FN {
  static constexpr int kMantissaBits = 3;
  static constexpr int kBias = 7;
  static constexpr std::uint32_t kLeastSpecial = 0x7f;  // the code from which on it is infinity or NaN
  static constexpr float kLeastNormal = 0x1p-6f;
  static constexpr float kCeiling = 0x1.ep8f;  // the number whose code means infinity, or NaN where there is none
  static constexpr std::uint32_t kNan = 0;     // what makes a NaN of that code
};

// The upper half of a float16.
struct E5M2 {
  static constexpr int kMantissaBits = 2;
  static constexpr int kBias = 15;
  static constexpr std::uint32_t kLeastSpecial = 0x7c;
  static constexpr float kLeastNormal = 0x1p-14f;
  static constexpr float kCeiling = 0x1p16f;
  static constexpr std::uint32_t kNan = 2;
};

// The representation of a float32; float8.h has that of vectors of them.
template <class F>
struct Lanes;

template <>
struct Lanes<float> {
  using Bits = std::uint32_t;
  using Signed = std::int32_t;
  COLLECTIVES_INLINE static Bits bits(float value) {
    Bits result;
    __builtin_memcpy(&result, &value, sizeof(result));
    return result;
  }
  COLLECTIVES_INLINE static float value(Bits bits) {
    float result;
    __builtin_memcpy(&result, &bits, sizeof(result));
    return result;
  }
  COLLECTIVES_INLINE static Signed as_signed(Bits bits) { return static_cast<Signed>(bits); }
  // All ones where the condition holds, else zero.
  COLLECTIVES_INLINE static Bits mask(bool condition) { return condition ? ~Bits{0} : Bits{0}; }
};

template <class Format, class F>
struct Float8Codes {
  using Lane = Lanes<F>;
  using Bits = typename Lane::Bits;
  static constexpr int kShift = 23 - Format::kMantissaBits;

  // The element in the top byte.
  COLLECTIVES_INLINE static F widen_top(Bits bits) {
    // Exponent and fraction where float32 has them.
    const Bits magnitude = (bits & 0x7f000000u) >> (24 - kShift);
    constexpr auto kSpecial = static_cast<std::int32_t>(Format::kLeastSpecial << kShift);
    const Bits special = Lane::mask(Lane::as_signed(magnitude) >= kSpecial);
    const F value = Lane::value(magnitude + ((127u - Format::kBias) << 23));
    // A subnormal f * 2^e now reads (1 + f) * 2^(e - 1): twice that, less 2^e. Anything else stays.
    const F excess = value - Format::kLeastNormal;
    const F correct = value + Extremes<F>::lesser(excess, F{});
    return Lane::value(Lane::bits(correct) | (special & 0x7f800000u) | (bits & 0x80000000u));
  }

  // The element without its sign. A power of two that depends on the exponent is added, so that the addition rounds at
  // the last bit that the element has, subnormal or not: the multiple of it is in the lowest bits of the sum.
  COLLECTIVES_INLINE static Bits code(F value) {
    const F absolute = Lane::value(Lane::bits(value) & 0x7fffffffu);
    const F bounded = Extremes<F>::lesser(absolute, F{} + Format::kCeiling);  // NaN too
    const F power = Lane::value(Lane::bits(bounded) & 0x7f800000u);
    const Bits unit = Lane::bits(Extremes<F>::greater(power, F{} + Format::kLeastNormal));
    const F magic = Lane::value(unit + (static_cast<std::uint32_t>(kShift) << 23));
    constexpr std::uint32_t kLeastMagic = (127u - Format::kBias + 1u + kShift) << 23;
    const Bits rounded = Lane::bits(bounded + magic) - kLeastMagic;
    Bits result = (rounded >> kShift) + (rounded & ((4u << Format::kMantissaBits) - 1u));
    if constexpr (Format::kNan != 0) result |= Lane::mask(value != value) & Format::kNan;
    return result;
  }
};

}  // namespace
}  // namespace collectives
