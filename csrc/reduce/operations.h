// The operations on vectors of values, and on pairs of vectors. Part of kernels.h; see there for the rules that this
// file keeps.
#pragma once

#include "reduce/operators.h"
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

#if defined(__x86_64__)
// The instructions do just that, down to what they make of NaN and of zeros, but GCC does not use them for it.
#define COLLECTIVES_EXTREMES(Lane, kBytes, min, max, ...)                           \
  template <>                                                                       \
  struct Extremes<Vector<Lane, kBytes>> {                                           \
    using V = Vector<Lane, kBytes>;                                                 \
    COLLECTIVES_INLINE static V lesser(V a, V b) { return min(__VA_ARGS__ a, b); }  \
    COLLECTIVES_INLINE static V greater(V a, V b) { return max(__VA_ARGS__ a, b); } \
  };

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

}  // namespace
}  // namespace collectives
