// Reductions and copies over arrays of one process, one array per replica: every source is read once and every
// destination written once, by all cores when there is enough to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/device.h"
#include "core/types.h"

namespace collectives {

// The value named ("canonical", "halves", "chain"), or ArgumentError.
Combination parse_combination(std::string_view text);

// One tensor: an array of each replica, and where the result goes. All are contiguous and aligned and have `count`
// elements. No two destinations overlap, and the first may be a source: otherwise none overlaps one.
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
// `packs` packs by number of elements, the remainder in the last, and each pack into one part per replica. With the
// other orders every element is combined alike, so that packs would change nothing.
//
// Throws ArgumentTypeError where `op` has no meaning for a dtype.
void reduce_replicas(Combination combination, int packs, std::span<const ReplicaTensor> tensors);

// Bytes of all sources that reduce_replicas has read in this process.
std::int64_t replica_bytes();

// A contiguous array that consists of `row_bytes` bytes in each of the rows of a ReplicaRows.
struct RowSource {
  const void* data = nullptr;
  std::int64_t row_bytes = 0;
};

// Borders at which work on one array is shared out, in elements or bytes: no two threads write one cache line, and
// vectors are full.
inline constexpr std::int64_t kBorder = 64;

// Every row of each destination becomes the row of all sources, one behind the other. With one row this is a
// concatenation, with one source a copy.
void gather_replicas(std::int64_t rows, std::span<const RowSource> sources, std::span<void* const> destinations);

}  // namespace collectives
