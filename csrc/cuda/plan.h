// What one launch does: which kernel (Choice), and its argument (LaunchPlan). Made on the host from a DeviceReduction.
#pragma once

#include <cstdint>

#include "core/device.h"

namespace collectives {

// Sources up to this number have kernels in which their number is a constant, for the commonest types.
inline constexpr int kMostFixedOperands = 8;

// The order in which a kernel combines sources: of a single source; of 2, 4 or 8, which the compiler knows, along the
// canonical tree; of any number along one or two trees; of any number one after another.
enum class Order : std::uint8_t { kOne, kTwo, kFour, kEight, kTrees, kChain };
inline constexpr int kOrders = 6;

// The kernels of a family are compiled in one file.
enum class Family : std::uint8_t { kHalves, kFloats, kFloat8, kIntegers, kBits };
inline constexpr int kFamilies = 5;

struct Choice {
  Family family;
  DType dtype;
  Op op;
  Order order;
};

// The canonical tree. It splits so evenly that all leaves lie on two adjacent levels: above the leaves it is a full
// tree, whose `nodes` lowest nodes have one or two sources each.
struct Tree {
  int nodes;
  std::uint32_t pairs;  // bit k: the k-th of these nodes has two sources
};

// The argument of a kernel. A pack is an aligned piece that a thread reads of a source at once. Loose elements, read
// one by one, are those before and behind the packs; all of them where the arrays are aligned differently.
template <int kMost>
struct LaunchPlan {
  const void* sources[kMost];  // in the order in which they are combined
  void* destinations[kMost];
  std::int64_t head;  // loose elements before the first pack
  std::int64_t loose;
  std::int64_t packs;
  double operand;
  Tree trees[2];  // where there are two, their results are rounded before they are combined
  int tree_count;
  int source_count;
  int destination_count;
  bool finish;
};
using AnyPlan = LaunchPlan<kMostDeviceOperands>;

// Whether the kernels of an order have the short argument LaunchPlan<kMostFixedOperands>: a launch copies its argument.
constexpr bool is_fixed(Order order) { return order >= Order::kTwo && order <= Order::kEight; }

// Whether `op` has a meaning for elements of `dtype`: the same as has_kernel() of reduce/reducer.h.
bool has_device_kernel(Op op, DType dtype);

// False where the reduction is not valid: a number out of range, an op that has no meaning for the dtype, or a pointer
// that is not aligned to the element.
bool make_plan(const DeviceReduction& reduction, Choice& choice, AnyPlan& plan);

// The plan as the short argument of kernels with a fixed number of sources.
LaunchPlan<kMostFixedOperands> shortened(const AnyPlan& plan);

}  // namespace collectives
