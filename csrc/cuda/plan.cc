#include "cuda/plan.h"

#include <algorithm>
#include <cstdint>

namespace collectives {
namespace {

bool is_half(DType dtype) { return is_narrow(dtype) && size_of(dtype) == 2; }
bool is_float8(DType dtype) { return is_narrow(dtype) && size_of(dtype) == 1; }

// The dtype as which elements of a size are combined bit by bit.
DType words(int bytes) {
  switch (bytes) {
    case 1:
      return DType::kUInt8;
    case 2:
      return DType::kUInt16;
    case 4:
      return DType::kUInt32;
    default:
      return DType::kUInt64;
  }
}

// The bitwise op that does the same for bytes of 0 and 1.
Op bitwise_of_bool(Op op) {
  switch (op) {
    case Op::kSum:
    case Op::kMax:
    case Op::kLogicalOr:
    case Op::kBitwiseOr:
      return Op::kBitwiseOr;
    case Op::kLogicalXor:
    case Op::kBitwiseXor:
      return Op::kBitwiseXor;
    default:
      return Op::kBitwiseAnd;
  }
}

Tree tree_of(int sources) {
  Tree tree = {1, 0};
  int levels = 0;
  for (; 2 * tree.nodes < sources; tree.nodes *= 2) ++levels;
  for (int node = 0; node < tree.nodes; ++node) {
    int count = sources;  // below the root; the bits of the node's number are the turns on the way down to it
    for (int level = levels - 1; level >= 0; --level) {
      count = (node >> level & 1) != 0 ? count / 2 : (count + 1) / 2;
    }
    tree.pairs |= static_cast<std::uint32_t>(count == 2) << node;
  }
  return tree;
}

Order order_for(int sources, bool fixed) {
  switch (sources) {
    case 1:
      return Order::kOne;
    case 2:
      return fixed ? Order::kTwo : Order::kTrees;
    case 4:
      return fixed ? Order::kFour : Order::kTrees;
    case 8:
      return fixed ? Order::kEight : Order::kTrees;
    default:
      return Order::kTrees;
  }
}

// The order of a reduction whose result depends on it. Sets `turn`, the source to begin with; those before it come
// last.
Order order_of(const DeviceReduction& reduction, bool exact, int& turn, AnyPlan& plan) {
  const int n = reduction.source_count;
  const int half = (n + 1) / 2;
  plan.tree_count = 1;
  plan.trees[0] = tree_of(n);
  switch (reduction.combination) {
    case Combination::kCanonical:
      break;
    case Combination::kHalves:
      // The result of the second half is the first operand. Where partial results are not rounded and the canonical
      // tree splits in the middle, too, one tree does the same.
      turn = half % n;
      if (n > 2 && !(exact && n % 2 == 0)) {
        plan.tree_count = 2;
        plan.trees[0] = tree_of(n - half);
        plan.trees[1] = tree_of(half);
        return Order::kTrees;
      }
      break;
    case Combination::kChain:
      turn = reduction.first;
      if (n > 2) return Order::kChain;
      break;
  }
  const bool few = reduction.destination_count <= kMostFixedOperands;
  return order_for(n, few && !is_float8(reduction.dtype));
}

bool is_valid(const DeviceReduction& r) {
  const auto between = [](int low, int value, int high) { return low <= value && value <= high; };
  return between(0, static_cast<int>(r.dtype), kDTypes - 1) && between(0, static_cast<int>(r.op), kOps - 1) &&
         between(0, static_cast<int>(r.combination), static_cast<int>(Combination::kChain)) &&
         between(1, r.source_count, r.op == Op::kPremulSum ? 1 : kMostDeviceOperands) &&
         between(1, r.destination_count, kMostDeviceOperands) && r.count >= 0 &&
         (r.combination != Combination::kChain || between(0, r.first, r.source_count - 1)) &&
         has_device_kernel(r.op, r.dtype);
}

// Cuts the arrays into packs and loose elements. False where one is not aligned to elements of `bytes` bytes.
bool cut(const DeviceReduction& reduction, std::int64_t count, int bytes, int pack, AnyPlan& plan) {
  const auto address = reinterpret_cast<std::uintptr_t>(reduction.destinations[0]);
  std::uintptr_t different = 0;
  for (int s = 0; s < reduction.source_count; ++s) {
    different |= reinterpret_cast<std::uintptr_t>(reduction.sources[s]) ^ address;
  }
  for (int d = 1; d < reduction.destination_count; ++d) {
    different |= reinterpret_cast<std::uintptr_t>(reduction.destinations[d]) ^ address;
  }
  if (((address | different) & (bytes - 1)) != 0) return false;
  const bool alike = (different & (pack - 1)) == 0;
  const std::int64_t head = static_cast<std::int64_t>(-address & (pack - 1)) / bytes;
  const std::int64_t lanes = pack / bytes;
  plan.packs = alike && count > head ? (count - head) / lanes : 0;
  plan.head = plan.packs > 0 ? head : count;
  plan.loose = count - plan.packs * lanes;
  return true;
}

}  // namespace

bool has_device_kernel(Op op, DType dtype) {
  if (is_complex(dtype)) return op == Op::kSum || op == Op::kAvg || op == Op::kPremulSum;
  if (is_integer(dtype) || dtype == DType::kBool) return op != Op::kAvg && op != Op::kPremulSum;
  return !is_bitwise(op);
}

bool make_plan(const DeviceReduction& reduction, Choice& choice, AnyPlan& plan) {
  if (!is_valid(reduction)) return false;
  const bool average = reduction.op == Op::kAvg && reduction.finish;
  choice = {Family::kIntegers, reduction.dtype, reduction.op, Order::kChain};
  int bytes = static_cast<int>(size_of(choice.dtype));
  int turn = 0;
  const bool copies = reduction.source_count == 1 && !average && !is_logical(choice.op) && choice.op != Op::kPremulSum;
  if (copies || choice.dtype == DType::kBool || is_bitwise(choice.op)) {
    choice.op = choice.dtype == DType::kBool ? bitwise_of_bool(choice.op) : choice.op;
    if (copies) choice.op = Op::kBitwiseOr;
    bytes = std::min(bytes, 8);
    choice.family = Family::kBits;
    choice.dtype = words(bytes);
  } else if (is_logical(choice.op)) {
    choice.family = Family::kBits;
  } else if (!is_integer(choice.dtype)) {
    if (is_complex(choice.dtype)) {
      choice.dtype = choice.dtype == DType::kComplex64 ? DType::kFloat32 : DType::kFloat64;
      bytes /= 2;
    }
    choice.family = is_half(choice.dtype)     ? Family::kHalves
                    : is_float8(choice.dtype) ? Family::kFloat8
                                              : Family::kFloats;
    choice.op = choice.op == Op::kAvg ? Op::kSum : choice.op;
    choice.order = order_of(reduction, choice.family == Family::kFloats, turn, plan);
  }
  const int pack = choice.family == Family::kFloat8 ? 8 : 16;
  const std::int64_t count = reduction.count * (static_cast<int>(size_of(reduction.dtype)) / bytes);
  if (!cut(reduction, count, bytes, pack, plan)) return false;
  plan.source_count = reduction.source_count;
  plan.destination_count = reduction.destination_count;
  plan.operand = reduction.operand;
  plan.finish = average;
  std::rotate_copy(reduction.sources, reduction.sources + turn, reduction.sources + reduction.source_count,
                   plan.sources);
  std::copy_n(reduction.destinations, reduction.destination_count, plan.destinations);
  return true;
}

LaunchPlan<kMostFixedOperands> shortened(const AnyPlan& plan) {
  LaunchPlan<kMostFixedOperands> result = {};
  std::copy_n(plan.sources, plan.source_count, result.sources);
  std::copy_n(plan.destinations, plan.destination_count, result.destinations);
  result.head = plan.head;
  result.loose = plan.loose;
  result.packs = plan.packs;
  result.operand = plan.operand;
  result.source_count = plan.source_count;
  result.destination_count = plan.destination_count;
  result.finish = plan.finish;
  return result;
}

}  // namespace collectives
