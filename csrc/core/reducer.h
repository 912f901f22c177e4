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
// tree(mid, hi), mid = lo + (hi - lo + 1) / 2. Halves are widened to float32, partial results stay float32, and the
// result is rounded once (to nearest even). Integers wrap. min and max return NaN when any source is NaN. bool: sum is
// or, prod is and. `divisor` divides the result of floating types (avg); kernels for other ops ignore it. A destination
// may be one of the sources (the very same pointer); otherwise nothing overlaps. Pointers are aligned to the element.
using ReduceFunction = void (*)(void* const* destinations, int destination_count, const void* const* sources,
                                int source_count, std::size_t count, double divisor);

struct Reducer {
  std::string_view isa;  // "avx512", "avx2", "baseline"
  int preference;        // the highest supported one is used
  bool (*supported)();
  // The kernel, or nullptr where the combination has no meaning (avg of integers or bool).
  // With `finish`, Op::kAvg divides by `divisor`; without, Op::kAvg only sums.
  ReduceFunction (*kernel)(DType dtype, Op op, bool finish);
};

struct RegisterReducer {
  explicit RegisterReducer(const Reducer& reducer);
};

// All reducers of this build, best first.
const std::vector<Reducer>& reducers();

// The best reducer that this machine supports, or the one that COLLECTIVES_ISA names.
const Reducer& best_reducer();

}  // namespace collectives
