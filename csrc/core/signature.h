// What a rank says it is about to do. Ranks compare signatures before any result is returned, so a disagreement is an
// error that carries both values and never a wrong sum.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "core/shapes.h"
#include "core/types.h"

namespace collectives {

// 16 bytes, so that it fits the header line of a collective beside the sequence number and a small payload.
struct Signature {
  std::uint8_t collective = 0;
  std::uint8_t op = 0;     // high bit: deterministic
  std::uint8_t dtype = 0;  // high bit: symmetric memory
  // 1 + position in the sorted registry, with the high bit where the selector chose it. 0: it is not chosen yet.
  std::uint8_t algorithm = 0;
  std::uint16_t root = 0;
  std::uint16_t tensors = 0;     // length of the tensor list, saturated
  std::uint64_t count_hash = 0;  // total elements (40 bits), then a hash of the list of counts (24 bits)

  // By all bytes at once: every call compares those of all ranks.
  friend bool operator==(const Signature& a, const Signature& b) { return std::memcmp(&a, &b, sizeof a) == 0; }
};
static_assert(sizeof(Signature) == 16 && std::has_unique_object_representations_v<Signature>);

// In the place of the algorithm, beside its number: the selector chose it.
inline constexpr std::uint8_t kChosen = 0x80;

// In the place of the algorithm: here the ranks only agree about a call whose data travel by NCCL.
inline constexpr int kByNccl = 255;

inline constexpr std::int64_t kMaxElements = (std::int64_t{1} << 40) - 1;

// counts: the lengths of the tensors, in elements.
Signature make_signature(Collective collective, Op op, DType dtype, MemoryKind memory, bool deterministic,
                         int algorithm, int root, std::span<const std::int64_t> counts);

// The signature of a call on symmetric memory, which must lie at the same offsets of the heaps of all ranks.
Signature placed(const Signature& signature, std::int64_t input_offset, std::int64_t output_offset);

// The signature of a call whose ranks must agree about the shapes of their tensors.
Signature shaped(const Signature& signature, const Shapes& shapes);

// The signature of a call whose ranks must agree about the names of their tensors.
Signature named(const Signature& signature, std::span<const std::string> names);

std::int64_t total_count(const Signature& signature);

}  // namespace collectives
