// The kernels, by family: each family has a file of its own, so that they are compiled in parallel.
#pragma once

#include "cuda/plan.h"

namespace collectives {

// Threads of a block.
inline constexpr int kThreads = 64;

// The address of a kernel, nullptr where the family has none. Its argument is a LaunchPlan<kMostFixedOperands> where
// is_fixed() says so, else an AnyPlan.
const void* kernel_of_halves(const Choice& choice);
const void* kernel_of_floats(const Choice& choice);
const void* kernel_of_float8(const Choice& choice);
const void* kernel_of_integers(const Choice& choice);
const void* kernel_of_bits(const Choice& choice);

}  // namespace collectives
