// The operations on vectors of values. Part of kernels.h; see there for the rules that this file keeps.
#pragma once

#include "reduce/elements.h"

namespace collectives {
namespace {

struct Sum {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V b) {
    return a + b;
  }
};

struct Product {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V b) {
    return a * b;
  }
};

// A NaN on either side is the result: the comparison is false when b is NaN, and a is checked. `a != a` is false for
// every integer, and folds away.
struct Minimum {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V b) {
    const V less = a < b ? a : b;
    return a != a ? a : less;
  }
};

struct Maximum {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V b) {
    const V greater = a > b ? a : b;
    return a != a ? a : greater;
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

}  // namespace
}  // namespace collectives
