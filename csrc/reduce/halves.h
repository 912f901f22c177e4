// float16 and bfloat16 to float32 and back, rounding to nearest even. Part of kernels.h; see there for the rules that
// this file keeps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/operations.h"
#include "reduce/vectors.h"

#if defined(COLLECTIVES_F16C)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace collectives {
namespace {

// Without an instruction for it, two neighbouring elements are taken from one 32-bit lane, the even one by a shift and
// the odd one by a mask: no shuffles.
template <int kBytes>
COLLECTIVES_INLINE Pair<Bits<kBytes>> split(const std::uint16_t* from) {
  const auto both = load_vector<Bits<kBytes>>(from);
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the even element must be the lower half of a lane"
#endif
  return {both << 16, both & 0xffff0000u};
}

// bfloat16 is the upper half of a float32.
struct BFloat16Conversion {
  template <int kBytes>
  COLLECTIVES_INLINE static Pair<Floats<kBytes>> widen(const std::uint16_t* from) {
    const Pair<Bits<kBytes>> bits = split<kBytes>(from);
    return {reinterpret_cast<Floats<kBytes>>(bits.first), reinterpret_cast<Floats<kBytes>>(bits.second)};
  }

  template <int kBytes>
  COLLECTIVES_INLINE static void narrow(std::uint16_t* to, Pair<Floats<kBytes>> value) {
    const Bits<kBytes> even = rounded<kBytes>(value.first) >> 16;
    const Bits<kBytes> odd = rounded<kBytes>(value.second) & 0xffff0000u;
    store_vector(to, even | odd);
  }

 private:
  // In the upper half. Finite values that are too large carry into the exponent and become infinity. A NaN must not
  // carry, and cannot: it came from a bfloat16 or is the one that the processor makes, so its lower half is zero.
  template <int kBytes>
  COLLECTIVES_INLINE static Bits<kBytes> rounded(Floats<kBytes> value) {
    const auto bits = reinterpret_cast<Bits<kBytes>>(value);
    return bits + 0x7fff + ((bits >> 16) & 1);
  }
};

#if defined(COLLECTIVES_F16C)

struct Float16Conversion {
  template <int kBytes>
  COLLECTIVES_INLINE static Pair<Floats<kBytes>> widen(const std::uint16_t* from) {
    return {widen_half<kBytes>(from), widen_half<kBytes>(from + kBytes / 4)};
  }

  template <int kBytes>
  COLLECTIVES_INLINE static void narrow(std::uint16_t* to, Pair<Floats<kBytes>> value) {
    narrow_half<kBytes>(to, value.first);
    narrow_half<kBytes>(to + kBytes / 4, value.second);
  }

 private:
  static constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

  template <int kBytes>
  COLLECTIVES_INLINE static Floats<kBytes> widen_half(const std::uint16_t* from) {
#if COLLECTIVES_VECTOR_BYTES == 64
    if constexpr (kBytes == 64) {
      // The form without a mask starts from an undefined register, which GCC 12 warns about.
      return reinterpret_cast<Floats<kBytes>>(
          _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
    }
#endif
    if constexpr (kBytes == 32) {
      return reinterpret_cast<Floats<kBytes>>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
    } else if constexpr (kBytes == 16) {
      return reinterpret_cast<Floats<kBytes>>(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
    }
  }

  template <int kBytes>
  COLLECTIVES_INLINE static void narrow_half(std::uint16_t* to, Floats<kBytes> value) {
#if COLLECTIVES_VECTOR_BYTES == 64
    if constexpr (kBytes == 64) {
      store_vector(to, _mm512_maskz_cvtps_ph(0xffff, reinterpret_cast<__m512>(value), kNearest));
    }
#endif
    if constexpr (kBytes == 32) {
      store_vector(to, _mm256_cvtps_ph(reinterpret_cast<__m256>(value), kNearest));
    } else if constexpr (kBytes == 16) {
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_cvtps_ph(reinterpret_cast<__m128>(value), kNearest));
    }
  }
};

#elif defined(__aarch64__)

struct Float16Conversion {
  template <int kBytes>
  COLLECTIVES_INLINE static Pair<Floats<kBytes>> widen(const std::uint16_t* from) {
    const auto halves = load_vector<float16x8_t>(from);
    return {reinterpret_cast<Floats<kBytes>>(vcvt_f32_f16(vget_low_f16(halves))),
            reinterpret_cast<Floats<kBytes>>(vcvt_high_f32_f16(halves))};
  }

  template <int kBytes>
  COLLECTIVES_INLINE static void narrow(std::uint16_t* to, Pair<Floats<kBytes>> value) {
    const float16x4_t low = vcvt_f16_f32(reinterpret_cast<float32x4_t>(value.first));
    store_vector(to, vcvt_high_f16_f32(low, reinterpret_cast<float32x4_t>(value.second)));
  }
};

#else

// With integers, and with float arithmetic that sees no subnormal number that matters: some callers, TensorFlow among
// them, run their threads with subnormals flushed to zero, and that must not reach values that are normal in float32.
struct Float16Conversion {
  template <int kBytes>
  COLLECTIVES_INLINE static Pair<Floats<kBytes>> widen(const std::uint16_t* from) {
    const Pair<Bits<kBytes>> bits = split<kBytes>(from);
    return {widen_upper<kBytes>(bits.first), widen_upper<kBytes>(bits.second)};
  }

  template <int kBytes>
  COLLECTIVES_INLINE static void narrow(std::uint16_t* to, Pair<Floats<kBytes>> value) {
    const Bits<kBytes> even = reinterpret_cast<Bits<kBytes>>(value.first);
    const Bits<kBytes> odd = reinterpret_cast<Bits<kBytes>>(value.second);
    store_vector(to, (narrow_magnitude<kBytes>(value.first) | narrow_magnitude<kBytes>(value.second) << 16) |
                         ((even >> 16 & 0x8000u) | (odd & 0x80000000u)));
  }

 private:
  // The float16 in the upper half of each lane.
  template <int kBytes>
  COLLECTIVES_INLINE static Floats<kBytes> widen_upper(Bits<kBytes> bits) {
    using Signed = Vector<std::int32_t, kBytes>;
    const Bits<kBytes> magnitude = (bits & 0x7fffffffu) >> 3;  // exponent and fraction where float32 has them
    // All exponent bits set means infinity or NaN here and there.
    const auto special = reinterpret_cast<Bits<kBytes>>(reinterpret_cast<Signed>(magnitude) >= (0x7c00 << 13));
    const auto value = reinterpret_cast<Floats<kBytes>>(magnitude + ((127u - 15u) << 23) + (special & (112u << 23)));
    // A subnormal f * 2^-14 now reads (1 + f) * 2^-15: twice that, less 2^-14. Anything else stays.
    const Floats<kBytes> excess = value - 0x1p-14f;
    const Floats<kBytes> correct = value + Extremes<Floats<kBytes>>::lesser(excess, Floats<kBytes>{});
    return reinterpret_cast<Floats<kBytes>>(reinterpret_cast<Bits<kBytes>>(correct) | (bits & 0x80000000u));
  }

  // Without the sign, in the lower half. A power of two that depends on the exponent is added, so that the addition
  // rounds at the last bit that float16 has, subnormal or not; scaling there and back first turns what is too large
  // into infinity.
  template <int kBytes>
  COLLECTIVES_INLINE static Bits<kBytes> narrow_magnitude(Floats<kBytes> value) {
    const Bits<kBytes> magnitude = reinterpret_cast<Bits<kBytes>>(value) & 0x7fffffffu;
    const Floats<kBytes> scaled = reinterpret_cast<Floats<kBytes>>(magnitude) * 0x1p112f * 0x1p-110f;
    const auto exponent = reinterpret_cast<Floats<kBytes>>(magnitude & 0x7f800000u);
    const Floats<kBytes> bounded = Extremes<Floats<kBytes>>::greater(exponent, Floats<kBytes>{} + 0x1p-14f);
    const auto magic = reinterpret_cast<Floats<kBytes>>(reinterpret_cast<Bits<kBytes>>(bounded) + (15u << 23));
    const auto rounded = reinterpret_cast<Bits<kBytes>>(scaled + magic);
    const Bits<kBytes> result = (rounded >> 13 & 0x7c00u) + (rounded & 0x0fffu);
    const auto nan = reinterpret_cast<Bits<kBytes>>(value != value);
    return result | nan >> 17;
  }
};

#endif

}  // namespace
}  // namespace collectives
