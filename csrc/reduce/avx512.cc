// The reducer for AVX-512 with the byte, word and quadword extensions that every server processor since 2017 has along
// with it.
#if defined(__x86_64__)

#define COLLECTIVES_VECTOR_BYTES 64
#define COLLECTIVES_F16C 1

// Every header but the kernels' own comes before the switch of the instruction set; see reduce/kernels.h.
#include <cpuid.h>
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "core/types.h"
#include "reduce/reducer.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,f16c")
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
  return f16c && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

const RegisterReducer registration({"avx512", 2, supported, kernel, scale});

}  // namespace
}  // namespace collectives

#endif
