// The operations on vectors of values. Part of kernels.h; see there for the rules that this file keeps.
#pragma once

#include "reduce/vectors.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace collectives {
namespace {

// `combine` makes one value of two; `finish` is what is done to the last one: see Loop.
template <class Operation, class V>
COLLECTIVES_INLINE V combine(V a, V b) {
  return Operation::combine(a, b);
}
template <class Operation, class V>
COLLECTIVES_INLINE Pair<V> combine(Pair<V> a, Pair<V> b) {
  return {combine<Operation>(a.first, b.first), combine<Operation>(a.second, b.second)};
}

template <class Operation, class V, class T>
COLLECTIVES_INLINE V finish(V a, T operand) {
  return Operation::finish(a, operand);
}
template <class Operation, class V, class T>
COLLECTIVES_INLINE Pair<V> finish(Pair<V> a, T operand) {
  return {finish<Operation>(a.first, operand), finish<Operation>(a.second, operand)};
}

// Finished, it is the average.
struct Sum {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V b) {
    return a + b;
  }
  template <class V, class T>
  COLLECTIVES_INLINE static V finish(V a, T divisor) {
    return a / divisor;
  }
};

// Of one source only.
struct Scale {
  template <class V, class T>
  COLLECTIVES_INLINE static V finish(V a, T factor) {
    return a * factor;
  }
};

// Of one source only: kOne for what counts as true, else 0. kMagnitude is the bits that count: all but the sign of a
// floating type, so that -0 is false and NaN is true.
template <class U, U kMagnitude, U kOne>
struct Truth {
  template <class V, class T>
  COLLECTIVES_INLINE static V finish(V a, T /*unused*/) {
    return reinterpret_cast<V>((a & kMagnitude) != 0) & kOne;
  }
};

struct Product {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V b) {
    return a * b;
  }
};

// a < b ? a : b, and a > b ? a : b.
template <class V>
COLLECTIVES_INLINE V lesser(V a, V b) {
  return a < b ? a : b;
}
template <class V>
COLLECTIVES_INLINE V greater(V a, V b) {
  return a > b ? a : b;
}

#if defined(__x86_64__)
// The instructions do just that, down to what they make of NaN and of zeros, but GCC does not use them for it.
#define COLLECTIVES_EXTREMES(Lane, kBytes, min, max, ...)                                           \
  COLLECTIVES_INLINE Vector<Lane, kBytes> lesser(Vector<Lane, kBytes> a, Vector<Lane, kBytes> b) {  \
    return min(__VA_ARGS__ a, b);                                                                   \
  }                                                                                                 \
  COLLECTIVES_INLINE Vector<Lane, kBytes> greater(Vector<Lane, kBytes> a, Vector<Lane, kBytes> b) { \
    return max(__VA_ARGS__ a, b);                                                                   \
  }

COLLECTIVES_EXTREMES(float, 16, _mm_min_ps, _mm_max_ps)
COLLECTIVES_EXTREMES(double, 16, _mm_min_pd, _mm_max_pd)
#if COLLECTIVES_VECTOR_BYTES >= 32
COLLECTIVES_EXTREMES(float, 32, _mm256_min_ps, _mm256_max_ps)
COLLECTIVES_EXTREMES(double, 32, _mm256_min_pd, _mm256_max_pd)
#endif
#if COLLECTIVES_VECTOR_BYTES >= 64
// The forms without a mask start from an undefined register, which GCC 12 warns about.
COLLECTIVES_EXTREMES(float, 64, _mm512_maskz_min_ps, _mm512_maskz_max_ps, 0xffff, )
COLLECTIVES_EXTREMES(double, 64, _mm512_maskz_min_pd, _mm512_maskz_max_pd, 0xff, )
#endif
#undef COLLECTIVES_EXTREMES
#endif

// A NaN on either side is the result: when b is NaN, both helpers return it, and a is checked. `a != a` is false for
// every integer, and folds away.
struct Minimum {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V b) {
    return a != a ? a : lesser(a, b);
  }
};

struct Maximum {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V b) {
    return a != a ? a : greater(a, b);
  }
};

struct Or {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V b) {
    return a | b;
  }
};

struct And {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V b) {
    return a & b;
  }
};

struct Xor {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V b) {
    return a ^ b;
  }
};

}  // namespace
}  // namespace collectives
