// What one thread of a kernel does. Tests compile it for the host and run it there.
#pragma once

#include <cstdint>

#include "cuda/plan.h"
#include "reduce/operators.h"

#if defined(__CUDACC__)
#define COLLECTIVES_UNROLL _Pragma("unroll")
#define COLLECTIVES_ROLLED _Pragma("unroll 1")
#define COLLECTIVES_AHEAD _Pragma("unroll 4")
#else
#define COLLECTIVES_UNROLL
#define COLLECTIVES_ROLLED
#define COLLECTIVES_AHEAD
#endif

namespace collectives {
namespace {

// Levels of the tree over kMostDeviceOperands sources above its lowest nodes.
inline constexpr int kLevels = 5;
static_assert(2 << kLevels == kMostDeviceOperands);

// kLanes neighbouring elements as they lie in memory, read and written by one instruction, and their values.
template <class Element, int kLanes>
struct alignas(kLanes * sizeof(typename Element::Stored)) Raw {
  typename Element::Stored lane[kLanes];
};
template <class Element, int kLanes>
struct Values {
  typename Element::Value lane[kLanes];
};

#if defined(__CUDACC__)
template <int kBytes>
struct Word;
template <>
struct Word<1> {
  using Type = unsigned char;
};
template <>
struct Word<2> {
  using Type = unsigned short;
};
template <>
struct Word<4> {
  using Type = unsigned;
};
template <>
struct Word<8> {
  using Type = unsigned long long;
};
template <>
struct Word<16> {
  using Type = uint4;
};
#endif

// Bypasses the cache of the multiprocessor (L1), since nothing is read twice.
template <class Any>
COLLECTIVES_INLINE Any read(const Any* from) {
#if defined(__CUDA_ARCH__)
  using Bits = typename Word<sizeof(Any)>::Type;
  const Bits bits = __ldcg(reinterpret_cast<const Bits*>(from));
  Any result;
  memcpy(&result, &bits, sizeof result);
  return result;
#else
  return *from;
#endif
}

template <class Element, int kLanes>
COLLECTIVES_INLINE Values<Element, kLanes> load(const void* source, std::int64_t offset) {
  const auto raw = read(reinterpret_cast<const Raw<Element, kLanes>*>(static_cast<const char*>(source) + offset));
  Values<Element, kLanes> result;
  COLLECTIVES_UNROLL
  for (int k = 0; k < kLanes; ++k) result.lane[k] = Element::decode(raw.lane[k]);
  return result;
}

// Stores to all destinations. kLikely: a number of destinations for which the loop is unrolled; 0: none.
template <class Element, int kLanes, int kLikely, class AnyPlan>
COLLECTIVES_INLINE void store(const AnyPlan& plan, std::int64_t offset, const Values<Element, kLanes>& values) {
  Raw<Element, kLanes> raw;
  COLLECTIVES_UNROLL
  for (int k = 0; k < kLanes; ++k) raw.lane[k] = Element::encode(values.lane[k]);
  const auto put = [&](int d) {
    *reinterpret_cast<Raw<Element, kLanes>*>(static_cast<char*>(plan.destinations[d]) + offset) = raw;
  };
  if (kLikely > 0 && plan.destination_count == kLikely) {
    COLLECTIVES_UNROLL
    for (int d = 0; d < kLikely; ++d) put(d);
  } else {
    COLLECTIVES_ROLLED
    for (int d = 0; d < plan.destination_count; ++d) put(d);
  }
}

template <class Operation, class Element, int kLanes>
COLLECTIVES_INLINE Values<Element, kLanes> combine(const Values<Element, kLanes>& a, const Values<Element, kLanes>& b) {
  Values<Element, kLanes> result;
  COLLECTIVES_UNROLL
  for (int k = 0; k < kLanes; ++k) result.lane[k] = Operation::combine(a.lane[k], b.lane[k]);
  return result;
}

// The values as they would be if they had been stored and loaded again.
template <class Element, int kLanes>
COLLECTIVES_INLINE Values<Element, kLanes> rounded(const Values<Element, kLanes>& values) {
  if constexpr (!Element::kNarrow) {
    return values;
  } else {
    Values<Element, kLanes> result;
    COLLECTIVES_UNROLL
    for (int k = 0; k < kLanes; ++k) result.lane[k] = Element::decode(Element::encode(values.lane[k]));
    return result;
  }
}

// The orders. value() combines the values of all sources at an offset of bytes.

struct One {
  using Plan = AnyPlan;
  static constexpr int kSources = 0;  // the number of sources, where it is a constant; else 0

  template <class Element, class Operation, int kLanes>
  COLLECTIVES_INLINE static Values<Element, kLanes> value(const Plan& plan, std::int64_t offset) {
    return load<Element, kLanes>(plan.sources[0], offset);
  }
};

template <int kNumber>
struct Fixed {
  using Plan = collectives::LaunchPlan<kMostFixedOperands>;
  static constexpr int kSources = kNumber;

  template <class Element, class Operation, int kLanes, int kLow = 0, int kHigh = kNumber>
  COLLECTIVES_INLINE static Values<Element, kLanes> value(const Plan& plan, std::int64_t offset) {
    if constexpr (kHigh - kLow == 1) {
      return load<Element, kLanes>(plan.sources[kLow], offset);
    } else {
      constexpr int kMiddle = middle(kLow, kHigh);
      const auto left = value<Element, Operation, kLanes, kLow, kMiddle>(plan, offset);
      const auto right = value<Element, Operation, kLanes, kMiddle, kHigh>(plan, offset);
      return combine<Operation>(left, right);
    }
  }
};

struct Trees {
  using Plan = AnyPlan;
  static constexpr int kSources = 0;

  // One tree, from left to right over the lowest nodes. waiting[level] is the result of a full left subtree of that
  // height until its right sibling is done; as in a binary counter, the bits of the node's number say which levels are
  // occupied. All indices are constants after unrolling, so the array stays in registers.
  template <class Element, class Operation, int kLanes>
  COLLECTIVES_INLINE static Values<Element, kLanes> one(const Plan& plan, const Tree& tree, int& source,
                                                        std::int64_t offset) {
    Values<Element, kLanes> waiting[kLevels];
    Values<Element, kLanes> result;
    COLLECTIVES_ROLLED
    for (int node = 0; node < tree.nodes; ++node) {
      result = load<Element, kLanes>(plan.sources[source++], offset);
      if ((tree.pairs >> node & 1) != 0) {
        result = combine<Operation>(result, load<Element, kLanes>(plan.sources[source++], offset));
      }
      bool rising = true;
      COLLECTIVES_UNROLL
      for (int level = 0; level < kLevels; ++level) {
        if (rising && (node >> level & 1) != 0) {
          result = combine<Operation>(waiting[level], result);
        } else if (rising) {
          waiting[level] = result;
          rising = false;
        }
      }
    }
    return result;
  }

  template <class Element, class Operation, int kLanes>
  COLLECTIVES_INLINE static Values<Element, kLanes> value(const Plan& plan, std::int64_t offset) {
    int source = 0;
    Values<Element, kLanes> result;
    COLLECTIVES_ROLLED
    for (int t = 0; t < plan.tree_count; ++t) {
      const auto next = one<Element, Operation, kLanes>(plan, plan.trees[t], source, offset);
      result = t == 0 ? next : combine<Operation>(rounded(result), rounded(next));
    }
    return result;
  }
};

struct Chain {
  using Plan = AnyPlan;
  static constexpr int kSources = 0;

  template <class Element, class Operation, int kLanes>
  COLLECTIVES_INLINE static Values<Element, kLanes> value(const Plan& plan, std::int64_t offset) {
    auto result = load<Element, kLanes>(plan.sources[0], offset);
    COLLECTIVES_AHEAD
    for (int s = 1; s < plan.source_count; ++s) {
      result = combine<Operation>(rounded(result), load<Element, kLanes>(plan.sources[s], offset));
    }
    return result;
  }
};

// Whether an operation finishes its result by the operand: always, or where the plan asks for it.
template <class Operation>
inline constexpr bool kFinishes = false;
template <>
inline constexpr bool kFinishes<Scale> = true;
template <class Operation>
inline constexpr bool kMayFinish = kFinishes<Operation>;
template <>
inline constexpr bool kMayFinish<Sum> = true;

// Reduces kLanes elements at an offset of bytes.
template <class Element, class Operation, class Order, int kLanes>
COLLECTIVES_INLINE void reduce_at(const typename Order::Plan& plan, std::int64_t offset) {
  auto result = Order::template value<Element, Operation, kLanes>(plan, offset);
  if constexpr (kMayFinish<Operation>) {
    if (kFinishes<Operation> || plan.finish) {
      const auto operand = static_cast<typename Element::Value>(plan.operand);
      COLLECTIVES_UNROLL
      for (int k = 0; k < kLanes; ++k) result.lane[k] = Operation::finish(result.lane[k], operand);
    }
  }
  store<Element, kLanes, Order::kSources>(plan, offset, result);
}

// The work of a thread: one pack, or one loose element; nothing where there are fewer. A destination may be a source: a
// thread reads its elements in all sources before it writes them, and no other thread reads or writes them.
template <class Element, class Operation, class Order>
COLLECTIVES_INLINE void work(const typename Order::Plan& plan, std::int64_t thread) {
  using Pack = typename Element::Pack;
  constexpr int kPackBytes = Element::kPackBytes;
  constexpr int kElementBytes = sizeof(typename Element::Stored);
  if (thread < plan.packs) {
    constexpr int kLanes = kPackBytes / int{sizeof(typename Pack::Stored)};
    reduce_at<Pack, Operation, Order, kLanes>(plan, plan.head * kElementBytes + thread * kPackBytes);
  } else if (const std::int64_t i = thread - plan.packs; i < plan.loose) {
    const std::int64_t packs = i < plan.head ? 0 : plan.packs;
    reduce_at<Element, Operation, Order, 1>(plan, i * kElementBytes + packs * kPackBytes);
  }
}

}  // namespace
}  // namespace collectives
