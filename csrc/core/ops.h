// The operations that combine values of several ranks: one row for each, which is all that is known of one besides
// kernels.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "core/dtypes.h"

namespace collectives {

enum class OpKind : std::uint8_t { kArithmetic, kLogical, kBitwise };

// Enumerator, name, kind, ncclRedOp_t. premul_sum: each rank scales its values by a factor of its own first. The order
// is part of the wire format: new ones go to the end.
// clang-format off
#define COLLECTIVES_OPS(X) \
  X(kSum,        "sum",         kArithmetic, 0) \
  X(kAvg,        "avg",         kArithmetic, 4) \
  X(kProd,       "prod",        kArithmetic, 1) \
  X(kMin,        "min",         kArithmetic, 3) \
  X(kMax,        "max",         kArithmetic, 2) \
  X(kPremulSum,  "premul_sum",  kArithmetic, 0) \
  X(kLogicalAnd, "logical_and", kLogical,    kNcclLacks) \
  X(kLogicalOr,  "logical_or",  kLogical,    kNcclLacks) \
  X(kLogicalXor, "logical_xor", kLogical,    kNcclLacks) \
  X(kBitwiseAnd, "bitwise_and", kBitwise,    kNcclLacks) \
  X(kBitwiseOr,  "bitwise_or",  kBitwise,    kNcclLacks) \
  X(kBitwiseXor, "bitwise_xor", kBitwise,    kNcclLacks) \
  /* New rows above. */
// clang-format on

enum class Op : std::uint8_t {
#define COLLECTIVES_ENUMERATOR(enumerator, ...) enumerator,
  COLLECTIVES_OPS(COLLECTIVES_ENUMERATOR)
#undef COLLECTIVES_ENUMERATOR
};

struct OpFacts {
  std::string_view name;
  OpKind kind;
  int nccl;
};

// In the order of the enumerators.
inline constexpr std::array kOpFacts = {
#define COLLECTIVES_FACTS(enumerator, name, kind, nccl) OpFacts{name, OpKind::kind, nccl},
    COLLECTIVES_OPS(COLLECTIVES_FACTS)
#undef COLLECTIVES_FACTS
};
inline constexpr int kOps = static_cast<int>(kOpFacts.size());

constexpr const OpFacts& facts(Op op) { return kOpFacts[static_cast<std::size_t>(op)]; }

}  // namespace collectives
