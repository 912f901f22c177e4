// How elements lie in memory and how they are computed with. Part of kernels.h; see there for the rules that this file
// keeps.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define COLLECTIVES_INLINE __attribute__((always_inline)) inline

namespace collectives {
namespace {

template <class T, int kBytes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kBytes)));  // NOLINT(modernize-use-using): `using` loses the attribute
};
template <class T, int kBytes>
using Vector = typename VectorOf<T, kBytes>::Type;

// The narrowest vectors, and the width that stands for "one element, in the first lane of the narrowest vector". With
// it the last elements take the very same path as all others and there are no scalar kernels.
inline constexpr int kLeastBytes = 16;
inline constexpr int kOneElement = 1;

template <class Value, int kBytes>
using Register = Vector<Value, kBytes == kOneElement ? kLeastBytes : kBytes>;

template <class Value, int kBytes>
constexpr std::size_t lanes() {
  return kBytes == kOneElement ? 1 : kBytes / sizeof(Value);
}

// Unaligned access. kOneElement fills the other lanes with zeros, which no operation traps or slows down on.
template <int kBytes, class Lane, int kRegisterBytes>
COLLECTIVES_INLINE Vector<Lane, kRegisterBytes> load_lanes(const Lane* from) {
  if constexpr (kBytes == kOneElement) {
    return Vector<Lane, kRegisterBytes>{*from};
  } else {
    Vector<Lane, kRegisterBytes> result;
    __builtin_memcpy(&result, from, sizeof(result));
    return result;
  }
}

template <int kBytes, class Lane, class V>
COLLECTIVES_INLINE void store_lanes(Lane* to, V value) {
  if constexpr (kBytes == kOneElement) {
    *to = value[0];
  } else {
    __builtin_memcpy(to, &value, sizeof(value));
  }
}

// Elements that are computed with as they are.
template <class T>
struct Plain {
  using Stored = T;
  using Value = T;

  template <int kBytes>
  COLLECTIVES_INLINE static Register<T, kBytes> load(const T* from) {
    return load_lanes<kBytes, T, sizeof(Register<T, kBytes>)>(from);
  }
  template <int kBytes>
  COLLECTIVES_INLINE static void store(T* to, Register<T, kBytes> value) {
    store_lanes<kBytes>(to, value);
  }
};

template <int kBytes>
using Bits32 = Vector<std::uint32_t, kBytes>;
template <int kBytes>
using Bits16 = Vector<std::uint16_t, kBytes / 2>;  // as many lanes as Bits32<kBytes>
template <int kBytes>
using Floats = Vector<float, kBytes>;

template <int kBytes>
COLLECTIVES_INLINE Bits32<kBytes> widen(Bits16<kBytes> bits) {
  return __builtin_convertvector(bits, Bits32<kBytes>);
}

// The upper halves of the lanes.
template <int kBytes>
COLLECTIVES_INLINE Bits16<kBytes> upper_halves(Bits32<kBytes> bits) {
#if defined(__x86_64__)
  if constexpr (kBytes == 16) {
    // SSE2 can only narrow with signed saturation: shift the sign in, then nothing saturates.
    const __m128i words = _mm_srai_epi32(reinterpret_cast<__m128i>(bits), 16);
    const __m128i packed = _mm_packs_epi32(words, words);
    Bits16<kBytes> result;
    __builtin_memcpy(&result, &packed, sizeof(result));
    return result;
  }
#endif
  return __builtin_convertvector(bits >> 16, Bits16<kBytes>);
}

// bfloat16: the upper half of a float32.
template <int kBytes>
COLLECTIVES_INLINE Floats<kBytes> bfloat16_to_float(Bits16<kBytes> bits) {
  return reinterpret_cast<Floats<kBytes>>(widen<kBytes>(bits) << 16);
}

template <int kBytes>
COLLECTIVES_INLINE Bits16<kBytes> float_to_bfloat16(Floats<kBytes> value) {
  const auto bits = reinterpret_cast<Bits32<kBytes>>(value);
  const Bits32<kBytes> rounded = bits + 0x7fff + ((bits >> 16) & 1);  // to nearest even; overflows to infinity
  const Bits32<kBytes> quiet = bits | 0x00400000;                     // rounding could turn a NaN into infinity
  return upper_halves<kBytes>(value != value ? quiet : rounded);
}

#if defined(COLLECTIVES_F16C)

template <int kBytes>
COLLECTIVES_INLINE Floats<kBytes> float16_to_float(Bits16<kBytes> bits) {
  if constexpr (kBytes == 64) {
#if COLLECTIVES_VECTOR_BYTES == 64
    // The form without a mask starts from an undefined register, which GCC 12 warns about.
    return reinterpret_cast<Floats<kBytes>>(_mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(bits)));
#endif
  } else if constexpr (kBytes == 32) {
    return reinterpret_cast<Floats<kBytes>>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(bits)));
  } else {
    return reinterpret_cast<Floats<kBytes>>(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(&bits))));
  }
}

template <int kBytes>
COLLECTIVES_INLINE Bits16<kBytes> float_to_float16(Floats<kBytes> value) {
  if constexpr (kBytes == 64) {
#if COLLECTIVES_VECTOR_BYTES == 64
    return reinterpret_cast<Bits16<kBytes>>(
        _mm512_maskz_cvtps_ph(0xffff, reinterpret_cast<__m512>(value), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#endif
  } else if constexpr (kBytes == 32) {
    return reinterpret_cast<Bits16<kBytes>>(
        _mm256_cvtps_ph(reinterpret_cast<__m256>(value), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  } else {
    const __m128i packed =
        _mm_cvtps_ph(reinterpret_cast<__m128>(value), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    Bits16<kBytes> result;
    __builtin_memcpy(&result, &packed, sizeof(result));
    return result;
  }
}

#elif defined(__aarch64__)

template <int kBytes>
COLLECTIVES_INLINE Floats<kBytes> float16_to_float(Bits16<kBytes> bits) {
  return reinterpret_cast<Floats<kBytes>>(vcvt_f32_f16(reinterpret_cast<float16x4_t>(bits)));
}

template <int kBytes>
COLLECTIVES_INLINE Bits16<kBytes> float_to_float16(Floats<kBytes> value) {
  return reinterpret_cast<Bits16<kBytes>>(vcvt_f16_f32(reinterpret_cast<float32x4_t>(value)));
}

#else

// Without an instruction for it: with integers, and with float additions that never see a subnormal operand which
// matters, since callers such as TensorFlow run their threads with subnormals flushed to zero.
template <int kBytes>
COLLECTIVES_INLINE Floats<kBytes> float16_to_float(Bits16<kBytes> half) {
  using U = Bits32<kBytes>;
  const U bits = widen<kBytes>(half);
  const U magnitude = (bits & 0x7fff) << 13;
  const U sign = (bits & 0x8000) << 16;
  const U normal = magnitude + ((127 - 15) << 23);
  // Infinity and NaN: all exponent bits set. Comparing as signed, since SSE2 knows no other.
  using I = Vector<std::int32_t, kBytes>;
  const U special = reinterpret_cast<U>(reinterpret_cast<I>(magnitude) >= (0x7c00 << 13)) & ((128 - 16) << 23);
  // Subnormal: read as 2^-14 * (1 + fraction) and take the 2^-14 away.
  const Floats<kBytes> renormal = reinterpret_cast<Floats<kBytes>>(normal + (1 << 23)) - 0x1p-14f;
  const U subnormal = reinterpret_cast<U>(reinterpret_cast<I>(magnitude) < (0x0400 << 13));
  const U result = (subnormal & reinterpret_cast<U>(renormal)) | (~subnormal & (normal + special));
  return reinterpret_cast<Floats<kBytes>>(result | sign);
}

template <int kBytes>
COLLECTIVES_INLINE Bits16<kBytes> float_to_float16(Floats<kBytes> value) {
  using U = Bits32<kBytes>;
  using I = Vector<std::int32_t, kBytes>;
  const U bits = reinterpret_cast<U>(value);
  const U magnitude = bits & 0x7fffffff;
  const I ordered = reinterpret_cast<I>(magnitude);
  // Results that are subnormal: adding 0.5 leaves the right number of bits, rounded to nearest even.
  const Floats<kBytes> aligned = reinterpret_cast<Floats<kBytes>>(magnitude) + 0.5f;
  const U small = reinterpret_cast<U>(aligned) - (126u << 23);
  const U normal = (magnitude - ((127u - 15u) << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const U nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  const U is_small = reinterpret_cast<U>(ordered < (113 << 23));
  const U is_large = reinterpret_cast<U>(ordered >= ((127 + 16) << 23));
  const U is_nan = reinterpret_cast<U>(ordered > 0x7f800000);
  const U large = (is_nan & nan) | (~is_nan & 0x7c00);
  const U finite = (is_small & small) | (~is_small & normal);
  const U result = (is_large & large) | (~is_large & finite);
  return upper_halves<kBytes>((result << 16) | (bits & 0x80000000));
}

#endif

// Elements of 16 bits that are computed with as float32.
#define COLLECTIVES_HALF(Name, to_float, from_float)                                                       \
  struct Name {                                                                                            \
    using Stored = std::uint16_t;                                                                          \
    using Value = float;                                                                                   \
    template <int kBytes>                                                                                  \
    COLLECTIVES_INLINE static Register<float, kBytes> load(const Stored* from) {                           \
      constexpr int kRegister = sizeof(Register<float, kBytes>);                                           \
      return to_float<kRegister>(load_lanes<kBytes, Stored, kRegister / 2>(from));                         \
    }                                                                                                      \
    template <int kBytes>                                                                                  \
    COLLECTIVES_INLINE static void store(Stored* to, Register<float, kBytes> value) {                      \
      store_lanes<kBytes>(to, from_float<sizeof(value)>(value));                                           \
    }                                                                                                      \
  };

COLLECTIVES_HALF(Float16, float16_to_float, float_to_float16)
COLLECTIVES_HALF(BFloat16, bfloat16_to_float, float_to_bfloat16)

#undef COLLECTIVES_HALF

}  // namespace
}  // namespace collectives
