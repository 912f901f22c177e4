#include "schedule/placement.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace collectives {
namespace {

constexpr double kCostOfSegment = 4 << 10;  // as bytes of a link
constexpr std::int64_t kShortestSegment = 32 << 10;
constexpr int kSegmentsOfPart = 4;

std::int64_t whole_elements(std::int64_t segment, std::int64_t element, const Limits& limits) {
  const std::int64_t bytes = std::min(std::max(segment, kShortestSegment), limits.segment_bytes);
  return std::max<std::int64_t>(bytes / element, 1) * element;
}

}  // namespace

Placement::Placement(const Topology& topology)
    : rank_(topology.rank),
      ranks_(topology.by_host()),
      host_of_(static_cast<std::size_t>(topology.size)),
      fewest_(topology.size) {
  for (int h = 0; h < hosts(); ++h) {
    for (std::size_t i = 0; i < ranks(h).size(); ++i) {
      const int r = ranks(h)[i];
      host_of_[static_cast<std::size_t>(r)] = h;
      place_ = r == rank_ ? static_cast<int>(i) : place_;
    }
    fewest_ = std::min(fewest_, static_cast<int>(ranks(h).size()));
    most_ = std::max(most_, static_cast<int>(ranks(h).size()));
  }
}

std::vector<int> Placement::chain(int first) const {
  std::vector<int> order = ranks(host_of(first));
  std::rotate(order.begin(), std::find(order.begin(), order.end(), first), order.end());
  for (int i = 1; i < hosts(); ++i) {
    const std::vector<int>& more = ranks((host_of(first) + i) % hosts());
    order.insert(order.end(), more.begin(), more.end());
  }
  return order;
}

int Placement::position(const std::vector<int>& order) const {
  return static_cast<int>(std::find(order.begin(), order.end(), rank_) - order.begin());
}

std::vector<int> Placement::leaders(int root) const {
  std::vector<int> leaders;
  for (const auto& of_host : ranks_) {
    leaders.push_back(of_host[0]);
  }
  leaders[static_cast<std::size_t>(host_of(root))] = root;
  return leaders;
}

BinomialPlace binomial_place(int position, int size) {
  BinomialPlace place;
  const int low_bit =
      position == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size))) : position & -position;
  if (position > 0) {
    place.parent = position - low_bit;
  }
  for (int bit = low_bit / 2; bit > 0; bit /= 2) {
    if (position + bit < size) {
      place.children.push_back(position + bit);
    }
  }
  return place;
}

std::int64_t pipeline_segment(std::int64_t bytes, std::int64_t element, int hops, const Limits& limits) {
  const double best = std::sqrt(static_cast<double>(bytes) * kCostOfSegment / std::max(hops, 1));
  return whole_elements(static_cast<std::int64_t>(best), element, limits);
}

std::int64_t part_segment(std::int64_t part, std::int64_t element, const Limits& limits) {
  return whole_elements(part / kSegmentsOfPart, element, limits);
}

std::string_view needs_hosts(const Topology& topology) {
  return topology.size > 1 && topology.all_mapped() ? "all ranks are on one host; it needs ranks on several hosts" : "";
}

}  // namespace collectives
