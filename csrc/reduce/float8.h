// 8-bit floats to float32 and back, rounding to nearest even. Part of kernels.h; see there for the rules that this file
// keeps. As with halves, no step depends on subnormal numbers of float32.
//
// Formats: P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022. What is too large becomes what float32's
// infinity becomes, as in ml_dtypes.
#pragma once

#include <cstdint>

#include "reduce/operations.h"
#include "reduce/vectors.h"

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

template <class Format>
struct Float8Conversion {
  // Four neighbouring elements are taken from one 32-bit lane: no shuffles.
  template <int kBytes>
  COLLECTIVES_INLINE static Wide<1, kBytes> widen(const std::uint8_t* from) {
    const auto four = load_vector<Bits<kBytes>>(from);
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the first element must be the lowest byte of a lane"
#endif
    return {{widen_top<kBytes>(four << 24), widen_top<kBytes>(four << 16)},
            {widen_top<kBytes>(four << 8), widen_top<kBytes>(four)}};
  }

  template <int kBytes>
  COLLECTIVES_INLINE static void narrow(std::uint8_t* to, Wide<1, kBytes> value) {
    const auto a = reinterpret_cast<Bits<kBytes>>(value.first.first);
    const auto b = reinterpret_cast<Bits<kBytes>>(value.first.second);
    const auto c = reinterpret_cast<Bits<kBytes>>(value.second.first);
    const auto d = reinterpret_cast<Bits<kBytes>>(value.second.second);
    const auto magnitude = (code<kBytes>(value.first.first) | code<kBytes>(value.first.second) << 8) |
                           (code<kBytes>(value.second.first) << 16 | code<kBytes>(value.second.second) << 24);
    const auto sign = ((a >> 24 & 0x80u) | (b >> 16 & 0x8000u)) | ((c >> 8 & 0x800000u) | (d & 0x80000000u));
    store_vector(to, magnitude | sign);
  }

 private:
  static constexpr int kShift = 23 - Format::kMantissaBits;

  // The element in the top byte of each lane.
  template <int kBytes>
  COLLECTIVES_INLINE static Floats<kBytes> widen_top(Bits<kBytes> bits) {
    using Signed = Vector<std::int32_t, kBytes>;
    // Exponent and fraction where float32 has them.
    const Bits<kBytes> magnitude = (bits & 0x7f000000u) >> (24 - kShift);
    constexpr auto kSpecial = static_cast<std::int32_t>(Format::kLeastSpecial << kShift);
    const auto special = reinterpret_cast<Bits<kBytes>>(reinterpret_cast<Signed>(magnitude) >= kSpecial);
    const auto value = reinterpret_cast<Floats<kBytes>>(magnitude + ((127u - Format::kBias) << 23));
    // A subnormal f * 2^e now reads (1 + f) * 2^(e - 1): twice that, less 2^e. Anything else stays.
    const Floats<kBytes> excess = value - Format::kLeastNormal;
    const Floats<kBytes> correct = value + lesser(excess, Floats<kBytes>{});
    return reinterpret_cast<Floats<kBytes>>(reinterpret_cast<Bits<kBytes>>(correct) | (special & 0x7f800000u) |
                                            (bits & 0x80000000u));
  }

  // The element without its sign. A power of two that depends on the exponent is added, so that the addition rounds at
  // the last bit that the element has, subnormal or not: the multiple of it is in the lowest bits of the sum.
  template <int kBytes>
  COLLECTIVES_INLINE static Bits<kBytes> code(Floats<kBytes> value) {
    const auto absolute = reinterpret_cast<Floats<kBytes>>(reinterpret_cast<Bits<kBytes>>(value) & 0x7fffffffu);
    const Floats<kBytes> bounded = lesser(absolute, Floats<kBytes>{} + Format::kCeiling);  // NaN too
    const auto power = reinterpret_cast<Floats<kBytes>>(reinterpret_cast<Bits<kBytes>>(bounded) & 0x7f800000u);
    const auto unit = reinterpret_cast<Bits<kBytes>>(greater(power, Floats<kBytes>{} + Format::kLeastNormal));
    const auto magic = reinterpret_cast<Floats<kBytes>>(unit + (static_cast<std::uint32_t>(kShift) << 23));
    constexpr std::uint32_t kLeastMagic = (127u - Format::kBias + 1u + kShift) << 23;
    const Bits<kBytes> rounded = reinterpret_cast<Bits<kBytes>>(bounded + magic) - kLeastMagic;
    Bits<kBytes> result = (rounded >> kShift) + (rounded & ((4u << Format::kMantissaBits) - 1u));
    if constexpr (Format::kNan != 0) result |= reinterpret_cast<Bits<kBytes>>(value != value) & Format::kNan;
    return result;
  }
};

}  // namespace
}  // namespace collectives
