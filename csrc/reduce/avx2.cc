// The reducer for AVX2, with the conversions of F16C. Not FMA: no kernel has a use for it, and contraction would change
// results.
#if defined(__x86_64__)

#define COLLECTIVES_VECTOR_BYTES 32
#define COLLECTIVES_F16C 1

// Every header but the kernels' own comes before the switch of the instruction set; see reduce/kernels.h.
#include <cpuid.h>
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "core/types.h"
#include "reduce/reducer.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

#include "reduce/kernels.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace collectives {
namespace {

bool supported() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;  // not a name that every compiler knows
  __builtin_cpu_init();
  return f16c && __builtin_cpu_supports("avx2");
}

const RegisterReducer registration({"avx2", 1, supported, kernel, scale});

}  // namespace
}  // namespace collectives

#endif
