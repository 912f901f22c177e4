// What is done to values: one functor per operation, for vectors on CPUs (operations.h) and for single values on GPUs
// (cuda/). On CPUs part of kernels.h; see there for the rules that this file keeps.
#pragma once

#if defined(__CUDACC__)
#define COLLECTIVES_INLINE __host__ __device__ __forceinline__
#else
#define COLLECTIVES_INLINE __attribute__((always_inline)) inline
#endif

namespace collectives {
namespace {

// Where the canonical tree splits sources [low, high).
COLLECTIVES_INLINE constexpr int middle(int low, int high) { return low + (high - low + 1) / 2; }

// Values narrower than `int` must not come here one by one: C++ would compute with them as `int`, whose products can
// overflow. As vectors, and as 32 bits, they wrap.

// finish() makes the average of it.
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
    return (a & kMagnitude) != 0 ? V{} + kOne : V{};
  }
};

struct Product {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V b) {
    return a * b;
  }
};

// a < b ? a : b, and a > b ? a : b. There are vectors that have instructions for it: see operations.h.
template <class V>
struct Extremes {
  COLLECTIVES_INLINE static V lesser(V a, V b) { return a < b ? a : b; }
  COLLECTIVES_INLINE static V greater(V a, V b) { return a > b ? a : b; }
};

// A NaN on either side is the result: when b is NaN, both helpers return it, and a is checked. `a != a` is false for
// every integer, and folds away.
struct Minimum {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V b) {
    return a != a ? a : Extremes<V>::lesser(a, b);
  }
};

struct Maximum {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V b) {
    return a != a ? a : Extremes<V>::greater(a, b);
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
