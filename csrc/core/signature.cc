#include "core/signature.h"

#include <algorithm>

#include "core/hash.h"

namespace collectives {
namespace {

constexpr std::uint8_t kHighBit = 0x80;
constexpr int kCountBits = 40;
constexpr std::uint64_t kGoldenRatio = 0x9e3779b97f4a7c15ULL;

// As it stands above the count: 24 bits that have something of all 64.
constexpr std::uint64_t above_count(std::uint64_t hash) { return (hash ^ (hash >> kCountBits)) << kCountBits; }

std::uint64_t hash_of(std::span<const std::int64_t> values) {
  std::uint64_t hash = kHashStart;
  for (const std::int64_t value : values) {
    hash = hash_with(hash, value);
  }
  return hash;
}

}  // namespace

Signature make_signature(Collective collective, Op op, DType dtype, MemoryKind memory, bool deterministic,
                         int algorithm, int root, std::span<const std::int64_t> counts) {
  std::uint64_t total = 0;
  for (const std::int64_t count : counts) {
    total += static_cast<std::uint64_t>(count);
  }
  Signature s;
  s.collective = static_cast<std::uint8_t>(collective);
  s.op = static_cast<std::uint8_t>(static_cast<std::uint8_t>(op) | (deterministic ? kHighBit : 0));
  s.dtype =
      static_cast<std::uint8_t>(static_cast<std::uint8_t>(dtype) | (memory == MemoryKind::kSymmetric ? kHighBit : 0));
  s.algorithm = static_cast<std::uint8_t>(algorithm);
  s.root = static_cast<std::uint16_t>(root);
  s.tensors = static_cast<std::uint16_t>(std::min<std::size_t>(counts.size(), UINT16_MAX));
  // One tensor has nothing to hash besides its count.
  s.count_hash = total | (counts.size() > 1 ? above_count(hash_of(counts)) : 0);
  return s;
}

Signature placed(const Signature& signature, std::int64_t input_offset, std::int64_t output_offset) {
  Signature s = signature;
  const auto mix = [&](std::int64_t offset) {
    s.count_hash ^= static_cast<std::uint64_t>(offset) * kGoldenRatio >> kCountBits << kCountBits;
  };
  mix(input_offset + 1);
  mix(output_offset * 3 + 2);
  return s;
}

Signature shaped(const Signature& signature, const Shapes& shapes) {
  Signature s = signature;
  s.count_hash ^= above_count(shapes.hash());
  return s;
}

Signature named(const Signature& signature, std::span<const std::string> names) {
  std::uint64_t hash = kHashStart;
  for (const std::string& name : names) {
    hash = hash_with(hash, static_cast<std::int64_t>(name.size()));
    for (const char letter : name) {
      hash = hash_with(hash, letter);
    }
  }
  Signature s = signature;
  s.count_hash ^= above_count(hash);
  return s;
}

std::int64_t total_count(const Signature& signature) {
  return static_cast<std::int64_t>(signature.count_hash & ((std::uint64_t{1} << kCountBits) - 1));
}

}  // namespace collectives
