// Reductions and concatenations of arrays of one process, one array per replica. Every source is read once and every
// destination written once, on all cores where there is enough work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/device.h"
#include "core/types.h"

namespace collectives {

// The Combination of a name: "canonical", "halves" or "chain". Throws ArgumentError for any other.
Combination parse_combination(std::string_view text);

// One tensor: an array of each replica, and where the result goes. All are contiguous and aligned and have `count`
// elements. No array overlaps a destination, except that the first destination may be one of the sources.
struct ReplicaTensor {
  DType dtype = DType::kFloat32;
  Op op = Op::kSum;
  std::int64_t count = 0;
  std::span<const void* const> sources;
  std::span<void* const> destinations;
};

// Reduces all tensors, which must have the same number of sources. Op::kAvg divides by that number.
//
// With kChain, the tensors of one dtype are one buffer, in the given order, as in a fused collective. It is split into
// `packs` packs of equal length, the last of which takes the remainder, and each pack into one part per replica. The
// other orders combine all elements alike, so `packs` does not matter.
//
// Throws ArgumentTypeError where `op` has no meaning for a dtype.
void reduce_replicas(Combination combination, int packs, std::span<const ReplicaTensor> tensors);

// The bytes that reduce_replicas has read in this process so far.
std::int64_t replica_bytes();

// A contiguous array of rows, of `row_bytes` bytes each.
struct RowSource {
  const void* data = nullptr;
  std::int64_t row_bytes = 0;
};

// Work on one array is divided between threads at multiples of this many elements or bytes, so that no two threads
// write to one cache line, and vectors are full.
inline constexpr std::int64_t kGrain = 64;

// Concatenates along the rows: each row of every destination becomes the corresponding rows of all sources, one behind
// the other.
void gather_replicas(std::int64_t rows, std::span<const RowSource> sources, std::span<void* const> destinations);

}  // namespace collectives
