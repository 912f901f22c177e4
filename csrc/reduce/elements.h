// How elements lie in memory, and the values they are computed with. Part of kernels.h; see there for the rules that
// this file keeps. kBytes counts bytes of elements: for 16-bit elements the values then fill two vectors of kBytes.
#pragma once

#include <cstddef>
#include <cstdint>

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

// Partial results of 16-bit elements. The order inside a register is that of the conversions, which need not be the
// order of the elements: whoever reads these goes through the same registers as whoever wrote them. Buffers of them
// have room for whole registers, so a tail is written and read as one.
struct HalfPartial {
  using Stored = float;
  using Value = float;
  using Partial = HalfPartial;
  static constexpr std::size_t kElementBytes = 2;
  static constexpr bool kPadded = true;
  template <int kBytes>
  using Register = Pair<Vector<float, kBytes>>;

  template <int kBytes>
  COLLECTIVES_INLINE static Register<kBytes> load(const float* from) {
    return {load_vector<Vector<float, kBytes>>(from),
            load_vector<Vector<float, kBytes>>(from + kBytes / sizeof(float))};
  }
  template <int kBytes>
  COLLECTIVES_INLINE static void store(float* to, Register<kBytes> value) {
    store_vector(to, value.first);
    store_vector(to + kBytes / sizeof(float), value.second);
  }
};

// 16-bit elements, computed with as float32.
template <class Conversion>
struct Half {
  using Stored = std::uint16_t;
  using Value = float;
  using Partial = HalfPartial;
  static constexpr std::size_t kElementBytes = 2;
  static constexpr bool kPadded = false;
  template <int kBytes>
  using Register = Pair<Vector<float, kBytes>>;

  template <int kBytes>
  COLLECTIVES_INLINE static Register<kBytes> load(const Stored* from) {
    return Conversion::template widen<kBytes>(from);
  }
  template <int kBytes>
  COLLECTIVES_INLINE static void store(Stored* to, Register<kBytes> value) {
    Conversion::template narrow<kBytes>(to, value);
  }
};

using Float16 = Half<Float16Conversion>;
using BFloat16 = Half<BFloat16Conversion>;

}  // namespace
}  // namespace collectives
