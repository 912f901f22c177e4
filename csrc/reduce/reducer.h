// The kernels that combine elements. One Reducer per instruction set; the best that the machine has is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/types.h"

namespace collectives {

// destinations[d][i] = combine(sources[0][i], ..., sources[n-1][i]) for 0 <= i < count and every d.
//
// The sources are combined along one canonical binary tree over their positions: tree(lo, hi) = tree(lo, mid) op
// tree(mid, hi), mid = lo + (hi - lo + 1) / 2. Halves and 8-bit floats are widened to float32, partial results stay
// float32, and the result is rounded once (to nearest even). Integers wrap. min and max return NaN when any source is
// NaN. bool: sum is or, prod is and. The logical ops give 0 or 1 of the type, also of one source; what is not zero, NaN
// too, is true. `divisor` divides the result of floating and complex types (avg); kernels for other ops ignore it. A
// destination may be one of the sources (the very same pointer); otherwise nothing overlaps. Pointers are aligned to
// the element.
using ReduceFunction = void (*)(void* const* destinations, int destination_count, const void* const* sources,
                                int source_count, std::size_t count, double divisor);

// destination[i] = source[i] * factor for 0 <= i < count: what premul_sum does to the values of a rank before they are
// summed. float64 and complex128 take the factor as it is, all others as float32; types that are narrower than float32
// are rounded once. Both parts of a complex number are scaled. `destination` may be `source`.
using ScaleFunction = void (*)(void* destination, const void* source, std::size_t count, double factor);

struct Reducer {
  std::string_view isa;  // "avx512", "avx2", "baseline"
  int preference;        // the highest supported one is used
  bool (*supported)();
  // The kernel, or nullptr where the combination has no meaning (avg of integers, max of complex numbers).
  // With `finish`, Op::kAvg divides by `divisor`; without, Op::kAvg only sums. That of Op::kPremulSum is that of sum.
  ReduceFunction (*kernel)(DType dtype, Op op, bool finish);
  // The kernel that multiplies by a factor, or nullptr for integers and bool.
  ScaleFunction (*scale)(DType dtype);
};

struct RegisterReducer {
  explicit RegisterReducer(const Reducer& reducer);
};

// All reducers of this build, best first.
const std::vector<Reducer>& reducers();

// Whether there are kernels for the combination; all reducers have the same.
bool has_kernel(Op op, DType dtype);

// The best reducer that this machine supports, or the one that COLLECTIVES_ISA names.
const Reducer& best_reducer();

}  // namespace collectives
