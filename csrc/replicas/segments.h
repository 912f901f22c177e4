// Cuts a reduction over replicas into segments: ranges of elements that are combined in the same order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "replicas/replicas.h"

namespace collectives {

// Elements [begin, begin + count) of a tensor, at least one.
struct Segment {
  const ReplicaTensor* tensor;
  std::int64_t begin;
  std::int64_t count;
  int first;          // the replica that kChain starts at
  std::int64_t cost;  // bytes read and written
};

// The arguments are those of reduce_replicas.
std::vector<Segment> cut(Combination combination, int packs, std::span<const ReplicaTensor> tensors);

}  // namespace collectives
