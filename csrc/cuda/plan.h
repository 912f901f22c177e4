// What one launch does: which kernel (Choice), and its argument (Plan). Made on the host from a DeviceReduction.
#pragma once

#include <cstdint>

#include "core/device.h"

namespace collectives {

// Sources up to this number have kernels in which their number is a constant, for the commonest types.
inline constexpr int kMostFixedOperands = 8;

// In which order a kernel combines: one source, a number of sources known to the compiler along the canonical tree, any
// number along one or two trees, or one after another.
enum class Order : std::uint8_t { kOne, kTwo, kFour, kEight, kTrees, kChain };
inline constexpr int kOrders = 6;

// Kernels that are compiled together, one file each.
enum class Family : std::uint8_t { kHalves, kFloats, kFloat8, kIntegers, kBits };
inline constexpr int kFamilies = 5;

struct Choice {
  Family family;
  DType dtype;
  Op op;
  Order order;
};

// The canonical tree over `sources` sources. Its splits are so even that all leaves are at most one level apart: above
// the leaves it is a full tree, whose lowest nodes, `nodes` of them, have one or two sources each.
struct Tree {
  int nodes;
  std::uint32_t pairs;  // bit k: the k-th of these nodes has two sources
};

// The argument of a kernel. A pack is what a thread reads at once of a source; loose elements are those before and
// behind the packs, or all where not all arrays have packs at the same places.
template <int kMost>
struct Plan {
  const void* sources[kMost];  // in the order in which they are combined
  void* destinations[kMost];
  std::int64_t head;  // loose elements before the first pack
  std::int64_t loose;
  std::int64_t packs;
  double operand;
  Tree trees[2];  // what two trees give is rounded, and then combined
  int tree_count;
  int source_count;
  int destination_count;
  bool finish;
};
using AnyPlan = Plan<kMostDeviceOperands>;

// Whether the kernels take a Plan<kMostFixedOperands>: launches copy their arguments.
constexpr bool is_fixed(Order order) { return order >= Order::kTwo && order <= Order::kEight; }

// Whether `op` has a meaning for elements of `dtype`: the same as has_kernel() of reduce/reducer.h.
bool has_device_kernel(Op op, DType dtype);

// False when the reduction is none: an unknown number, operation without a meaning, or a pointer that is not aligned to
// the element.
bool make_plan(const DeviceReduction& reduction, Choice& choice, AnyPlan& plan);

// The same, for the kernels with a fixed number of sources.
Plan<kMostFixedOperands> shortened(const AnyPlan& plan);

}  // namespace collectives
