// Reductions by way of other values: a block of each source is converted, the blocks are reduced by another kernel, and
// the result is converted back, all in the first-level cache. Costs a pass or two over that cache, and saves kernels of
// its own for types and operations that are rare. Part of kernels.h; see there for the rules that this file keeps.
#pragma once

#include <cstddef>

#include "reduce/elements.h"
#include "reduce/loop.h"
#include "reduce/operations.h"
#include "reduce/reducer.h"
#include "reduce/reduction.h"

namespace collectives {
namespace {

// Of values: eight such blocks fill half of a small first-level cache.
inline constexpr std::size_t kBlockBytes = 2048;

struct Conversion {
  using Function = void (*)(void* to, const void* from, std::size_t count);
  Function decode;
  Function encode;  // nullptr where values are elements of the type and can be reduced right into the destination
  std::size_t element_bytes;
  std::size_t value_bytes;

  // How many values the conversion of `count` elements makes: tails are converted as whole registers.
  COLLECTIVES_INLINE std::size_t values(std::size_t count) const {
    return encode == nullptr ? count : (count + kLeastBytes - 1) / kLeastBytes * kLeastBytes;
  }
};

template <class In, class Out, class Operation, bool kFinish>
void convert(void* to, const void* from, std::size_t count) {
  fixed<In, Out, Operation, kFinish, 1, 1>(&to, &from, 0, 0, count, 1);
}

// 8-bit floats as float32.
template <class Element>
struct WideBlocks {
  using Partial = typename Element::Partial;
  static constexpr Conversion kConversion = {convert<Element, Partial, Sum, false>,
                                             convert<Partial, Element, Sum, false>, Element::kElementBytes,
                                             sizeof(typename Element::Value)};
};

// Any value as 0 or kOne: `and`, `or` and `xor` of the bits of such values give such values again.
template <class U, U kMagnitude, U kOne>
struct TruthBlocks {
  static constexpr Conversion kConversion = {convert<Plain<U>, Plain<U>, Truth<U, kMagnitude, kOne>, true>, nullptr,
                                             sizeof(U), sizeof(U)};
};

// The elements from `from` on of at most kFixedSources sources, which may be where `out` is.
__attribute__((noinline)) void reduce_few(const Conversion& conversion, ReduceFunction last, void* out,
                                          const void* const* sources, int n, std::size_t from, std::size_t count,
                                          double divisor) {
  alignas(64) unsigned char values[kFixedSources][kBlockBytes];
  const void* decoded[kFixedSources];
  for (int k = 0; k < n; ++k) {
    const auto* source = static_cast<const unsigned char*>(sources[k]) + from * conversion.element_bytes;
    conversion.decode(values[k], source, count);
    decoded[k] = values[k];
  }
  last(&out, 1, decoded, n, conversion.values(count), divisor);
}

// Any number of sources. They are split where the canonical tree splits them, so the result is that of this tree.
__attribute__((noinline)) void reduce_block(const Conversion& conversion, ReduceFunction combine, ReduceFunction last,
                                            void* out, const void* const* sources, int n, std::size_t from,
                                            std::size_t count, double divisor) {
  if (n <= kFixedSources) return reduce_few(conversion, last, out, sources, n, from, count, divisor);
  alignas(64) unsigned char left[kBlockBytes];
  alignas(64) unsigned char right[kBlockBytes];
  const void* halves[] = {left, right};
  const int left_sources = middle(0, n);
  reduce_block(conversion, combine, combine, left, sources, left_sources, from, count, 1);
  reduce_block(conversion, combine, combine, right, sources + left_sources, n - left_sources, from, count, 1);
  last(&out, 1, halves, 2, conversion.values(count), divisor);
}

__attribute__((noinline)) void reduce_blocks(const Conversion& conversion, ReduceFunction combine, ReduceFunction last,
                                             void* const* destinations, int destination_count,
                                             const void* const* sources, int n, std::size_t count, double divisor) {
  const std::size_t bytes = conversion.element_bytes;
  const std::size_t block = kBlockBytes / conversion.value_bytes;
  alignas(64) unsigned char result[kBlockBytes];
  for (std::size_t i = 0; i < count; i += block) {
    const std::size_t size = count - i < block ? count - i : block;
    auto* destination = static_cast<unsigned char*>(destinations[0]) + i * bytes;
    void* out = conversion.encode == nullptr ? destination : result;
    reduce_block(conversion, combine, last, out, sources, n, i, size, divisor);
    if (conversion.encode != nullptr) conversion.encode(destination, result, size);
    copy_bytes(destinations + 1, destination_count - 1, destinations[0], i * bytes, (i + size) * bytes);
  }
}

// The kernel itself. kLast, where it is another one than kCombine, makes the last combination and divides.
template <class Blocks, ReduceFunction kCombine, ReduceFunction kLast = kCombine>
void by_blocks(void* const* destinations, int destination_count, const void* const* sources, int source_count,
               std::size_t count, double divisor) {
  constexpr const Conversion& kConversion = Blocks::kConversion;
  if (source_count < 1 || destination_count < 1) return;
  if (kConversion.encode != nullptr && kCombine == kLast && source_count == 1) {
    return copy_bytes(destinations, destination_count, sources[0], 0, count * kConversion.element_bytes);
  }
  reduce_blocks(kConversion, kCombine, kLast, destinations, destination_count, sources, source_count, count, divisor);
}

}  // namespace
}  // namespace collectives
