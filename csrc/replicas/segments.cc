#include "replicas/segments.h"

#include <algorithm>
#include <array>

#include "schedule/schedule.h"

namespace collectives {
namespace {

std::int64_t cost_of(const ReplicaTensor& tensor, std::int64_t count) {
  return count *
         static_cast<std::int64_t>(size_of(tensor.dtype) * (tensor.sources.size() + tensor.destinations.size()));
}

// Cuts the tensors of one dtype, which lie one behind the other, at the ends of the parts of each pack.
void cut_parts(std::span<const ReplicaTensor> tensors, DType dtype, std::int64_t total, int packs,
               std::vector<Segment>& segments) {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const int n = static_cast<int>(tensors[0].sources.size());
  const std::int64_t share = total / packs;
  int pack = share == 0 ? packs - 1 : 0;  // empty packs come first
  int part = -1;
  std::int64_t end = 0;  // of the part
  std::int64_t position = 0;
  for (const ReplicaTensor& tensor : tensors) {
    if (tensor.dtype != dtype) {
      continue;
    }
    for (std::int64_t begin = 0; begin < tensor.count;) {
      while (position == end) {
        if (++part == n) {
          part = 0;
          ++pack;
        }
        const std::int64_t length = pack == packs - 1 ? total - share * (packs - 1) : share;
        const Part bytes = part_of(length * element, element, n, part);
        end = share * pack + (bytes.offset + bytes.bytes) / element;
      }
      const std::int64_t count = std::min(end - position, tensor.count - begin);
      segments.push_back({&tensor, begin, count, part, cost_of(tensor, count)});
      begin += count;
      position += count;
    }
  }
}

}  // namespace

std::vector<Segment> cut(Combination combination, int packs, std::span<const ReplicaTensor> tensors) {
  std::vector<Segment> segments;
  segments.reserve(tensors.size());
  if (combination != Combination::kChain) {
    for (const ReplicaTensor& tensor : tensors) {
      if (tensor.count > 0) {
        segments.push_back({&tensor, 0, tensor.count, 0, cost_of(tensor, tensor.count)});
      }
    }
    return segments;
  }
  std::array<std::int64_t, kDTypes> total{};
  for (const ReplicaTensor& tensor : tensors) {
    total[static_cast<int>(tensor.dtype)] += tensor.count;
  }
  for (int dtype = 0; dtype < kDTypes; ++dtype) {
    if (total[dtype] > 0) {
      cut_parts(tensors, static_cast<DType>(dtype), total[dtype], packs, segments);
    }
  }
  return segments;
}

}  // namespace collectives
