// The loop that all kernels consist of. Part of kernels.h; see there for the rules that this file keeps.
#pragma once

#include <cstddef>

#include "reduce/elements.h"
#include "reduce/operations.h"
#include "reduce/vectors.h"

namespace collectives {
namespace {

// The canonical tree over sources [kLow, kHigh), for the register that starts at element `i`.
template <class In, class Operation, int kLow, int kHigh, int kBytes>
COLLECTIVES_INLINE typename In::template Register<kBytes> tree(const typename In::Stored* const* sources,
                                                               std::size_t i) {
  if constexpr (kHigh - kLow == 1) {
    return In::template load<kBytes>(sources[kLow] + i);
  } else {
    constexpr int kMiddle = middle(kLow, kHigh);
    return combine<Operation>(tree<In, Operation, kLow, kMiddle, kBytes>(sources, i),
                              tree<In, Operation, kMiddle, kHigh, kBytes>(sources, i));
  }
}

// The loop over a fixed number of sources and destinations. With kFinish, Operation::finish makes the results from what
// the tree gives and one operand, the same for all elements.
template <class In, class Out, class Operation, bool kFinish, int kSources, int kDestinations>
struct Loop {
  using Value = typename In::Value;
  typename Out::Stored* destinations[kDestinations];
  const typename In::Stored* sources[kSources];
  Value operand;  // of Operation::finish

  template <int kBytes>
  COLLECTIVES_INLINE auto value(const typename In::Stored* const* from, std::size_t i) const {
    const auto result = tree<In, Operation, 0, kSources, kBytes>(from, i);
    if constexpr (kFinish) {
      return finish<Operation>(result, operand);
    } else {
      return result;
    }
  }

  // As many steps of kUnroll registers as fit; returns where they ended. All registers of a step are computed before
  // the first is stored: a destination may be a source, and the compiler cannot know that only the very same one may.
  template <int kBytes, int kUnroll>
  COLLECTIVES_INLINE std::size_t sweep(std::size_t i, std::size_t count) const {
    constexpr std::size_t kLanes = kBytes == kOneElement ? 1 : kBytes / In::kElementBytes;
    for (; count - i >= kLanes * kUnroll; i += kLanes * kUnroll) {
      typename In::template Register<kBytes> results[kUnroll];
#pragma GCC unroll 8
      for (int u = 0; u < kUnroll; ++u) results[u] = value<kBytes>(sources, i + u * kLanes);
#pragma GCC unroll 8
      for (int u = 0; u < kUnroll; ++u) {
#pragma GCC unroll 8
        for (int d = 0; d < kDestinations; ++d) {
          Out::template store<kBytes>(destinations[d] + i + u * kLanes, results[u]);
        }
      }
    }
    return i;
  }

  // The last elements, fewer than fill the narrowest register, by way of whole registers on the stack.
  COLLECTIVES_INLINE void staged(std::size_t i, std::size_t count) const {
    constexpr std::size_t kLanes = kLeastBytes / In::kElementBytes;
    const std::size_t bytes = (count - i) * In::kElementBytes;
    alignas(kLeastBytes) typename In::Stored stage[kSources][kLanes];
    const typename In::Stored* from[kSources];
#pragma GCC unroll 8
    for (int k = 0; k < kSources; ++k) {
      if constexpr (In::kPadded) {
        from[k] = sources[k] + i;
      } else {
        gather_tail(stage[k], sources[k] + i, bytes);
        from[k] = stage[k];
      }
    }
    const auto result = value<kLeastBytes>(from, 0);
#pragma GCC unroll 8
    for (int d = 0; d < kDestinations; ++d) {
      if constexpr (Out::kPadded) {
        Out::template store<kLeastBytes>(destinations[d] + i, result);
      } else {
        alignas(kLeastBytes) typename Out::Stored out[kLanes];
        Out::template store<kLeastBytes>(out, result);
        scatter_tail(destinations[d] + i, out, bytes);
      }
    }
  }
};

// Reduces `count` elements of kSources sources, from element `from` of each, to element `to` of each destination.
// Not inlined, so that the dispatch in front of it needs no stack frame, which would decide the time of tiny messages.
template <class In, class Out, class Operation, bool kFinish, int kSources, int kDestinations>
__attribute__((noinline)) void fixed(void* const* destinations, const void* const* sources, std::size_t to,
                                     std::size_t from, std::size_t count, double operand) {
  Loop<In, Out, Operation, kFinish, kSources, kDestinations> loop;
#pragma GCC unroll 8
  for (int d = 0; d < kDestinations; ++d) {
    loop.destinations[d] = static_cast<typename Out::Stored*>(destinations[d]) + to;
  }
#pragma GCC unroll 8
  for (int s = 0; s < kSources; ++s) {
    loop.sources[s] = static_cast<const typename In::Stored*>(sources[s]) + from;
  }
  loop.operand = static_cast<typename In::Value>(operand);
  // With few sources the loop overhead counts. Where values are wider than elements, they need the registers.
  constexpr bool kNarrow = sizeof(typename In::Value) == In::kElementBytes;
  constexpr int kUnroll = !kNarrow ? 1 : kSources <= 2 ? 4 : kSources <= 4 ? 2 : 1;
  constexpr int kFull = COLLECTIVES_VECTOR_BYTES;
  std::size_t i = 0;
  if constexpr (kUnroll > 1) i = loop.template sweep<kFull, kUnroll>(i, count);
  i = loop.template sweep<kFull, 1>(i, count);
  if constexpr (kFull > kLeastBytes) i = loop.template sweep<kLeastBytes, 1>(i, count);
  if constexpr (In::kElementBytes >= 4) {  // at most three
    loop.template sweep<kOneElement, 1>(i, count);
  } else {
    if (i < count) loop.staged(i, count);
  }
}

}  // namespace
}  // namespace collectives
