// How elements lie in memory, and the values they are computed with. Part of kernels.h; see there for the rules that
// this file keeps. kBytes counts bytes of elements: the values then fill two vectors of kBytes for 16-bit elements, and
// four for 8-bit floats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/float8.h"
#include "reduce/halves.h"
#include "reduce/vectors.h"

namespace collectives {
namespace {

// Elements that are computed with as they are.
template <class T>
struct Plain {
  using Stored = T;
  using Value = T;
  using Partial = Plain;  // how partial results are kept between two passes
  static constexpr std::size_t kElementBytes = sizeof(T);
  static constexpr bool kPadded = false;
  template <int kBytes>
  using Register = Vector<T, kBytes == kOneElement ? kLeastBytes : kBytes>;

  template <int kBytes>
  COLLECTIVES_INLINE static Register<kBytes> load(const T* from) {
    if constexpr (kBytes == kOneElement) {
      return Register<kBytes>{*from};  // zeros elsewhere, which no operation traps or slows down on
    } else {
      return load_vector<Register<kBytes>>(from);
    }
  }
  template <int kBytes>
  COLLECTIVES_INLINE static void store(T* to, Register<kBytes> value) {
    if constexpr (kBytes == kOneElement) {
      *to = value[0];
    } else {
      store_vector(to, value);
    }
  }
};

// Partial results of elements that are computed with as float32. The order inside a register is that of the
// conversions, which need not be the order of the elements: they are read through the same registers as they were
// written. Buffers of them have room for whole registers, so a tail is written and read as one.
template <std::size_t kBytesOfElement>
struct WidePartial {
  using Stored = float;
  using Value = float;
  using Partial = WidePartial;
  static constexpr std::size_t kElementBytes = kBytesOfElement;
  static constexpr bool kPadded = true;
  template <int kBytes>
  using Register = Wide<kElementBytes, kBytes>;

  template <int kBytes>
  COLLECTIVES_INLINE static Register<kBytes> load(const float* from) {
    if constexpr (kElementBytes == 2) {
      return {load_vector<Floats<kBytes>>(from), load_vector<Floats<kBytes>>(from + kBytes / 4)};
    } else {
      return {WidePartial<2>::load<kBytes>(from), WidePartial<2>::load<kBytes>(from + kBytes / 2)};
    }
  }
  template <int kBytes>
  COLLECTIVES_INLINE static void store(float* to, Register<kBytes> value) {
    if constexpr (kElementBytes == 2) {
      store_vector(to, value.first);
      store_vector(to + kBytes / 4, value.second);
    } else {
      WidePartial<2>::store<kBytes>(to, value.first);
      WidePartial<2>::store<kBytes>(to + kBytes / 2, value.second);
    }
  }
};

// Elements of 16 or 8 bits, computed with as float32.
template <class Bits, class Conversion>
struct Narrow {
  using Stored = Bits;
  using Value = float;
  using Partial = WidePartial<sizeof(Bits)>;
  static constexpr std::size_t kElementBytes = sizeof(Bits);
  static constexpr bool kPadded = false;
  template <int kBytes>
  using Register = Wide<kElementBytes, kBytes>;

  template <int kBytes>
  COLLECTIVES_INLINE static Register<kBytes> load(const Stored* from) {
    return Conversion::template widen<kBytes>(from);
  }
  template <int kBytes>
  COLLECTIVES_INLINE static void store(Stored* to, Register<kBytes> value) {
    Conversion::template narrow<kBytes>(to, value);
  }
};

using Float16 = Narrow<std::uint16_t, Float16Conversion>;
using BFloat16 = Narrow<std::uint16_t, BFloat16Conversion>;
using Float8E4M3FN = Narrow<std::uint8_t, Float8Conversion<E4M3FN>>;
using Float8E5M2 = Narrow<std::uint8_t, Float8Conversion<E5M2>>;

}  // namespace
}  // namespace collectives
