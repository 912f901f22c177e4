// 8-bit floats to float32 and back, a vector at a time. Part of kernels.h; see there for the rules that this file
// keeps.
#pragma once

#include <cstdint>

#include "reduce/float8_codes.h"
#include "reduce/vectors.h"

namespace collectives {
namespace {

template <class F>
struct Lanes {
  using Bits = Vector<std::uint32_t, sizeof(F)>;
  using Signed = Vector<std::int32_t, sizeof(F)>;
  COLLECTIVES_INLINE static Bits bits(F value) { return reinterpret_cast<Bits>(value); }
  COLLECTIVES_INLINE static F value(Bits bits) { return reinterpret_cast<F>(bits); }
  COLLECTIVES_INLINE static Signed as_signed(Bits bits) { return reinterpret_cast<Signed>(bits); }
  COLLECTIVES_INLINE static Bits mask(Signed condition) { return reinterpret_cast<Bits>(condition); }
};

template <class Format>
struct Float8Conversion {
  template <int kBytes>
  using Codes = Float8Codes<Format, Floats<kBytes>>;

  // Four neighbouring elements are taken from one 32-bit lane: no shuffles.
  template <int kBytes>
  COLLECTIVES_INLINE static Wide<1, kBytes> widen(const std::uint8_t* from) {
    const auto four = load_vector<Bits<kBytes>>(from);
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the first element must be the lowest byte of a lane"
#endif
    return {{Codes<kBytes>::widen_top(four << 24), Codes<kBytes>::widen_top(four << 16)},
            {Codes<kBytes>::widen_top(four << 8), Codes<kBytes>::widen_top(four)}};
  }

  template <int kBytes>
  COLLECTIVES_INLINE static void narrow(std::uint8_t* to, Wide<1, kBytes> value) {
    const auto a = reinterpret_cast<Bits<kBytes>>(value.first.first);
    const auto b = reinterpret_cast<Bits<kBytes>>(value.first.second);
    const auto c = reinterpret_cast<Bits<kBytes>>(value.second.first);
    const auto d = reinterpret_cast<Bits<kBytes>>(value.second.second);
    const auto magnitude =
        (Codes<kBytes>::code(value.first.first) | Codes<kBytes>::code(value.first.second) << 8) |
        (Codes<kBytes>::code(value.second.first) << 16 | Codes<kBytes>::code(value.second.second) << 24);
    const auto sign = ((a >> 24 & 0x80u) | (b >> 16 & 0x8000u)) | ((c >> 8 & 0x800000u) | (d & 0x80000000u));
    store_vector(to, magnitude | sign);
  }
};

}  // namespace
}  // namespace collectives
