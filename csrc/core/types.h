// The plain vocabulary of the library: collectives, element types, reduction operations, memory kinds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace collectives {

enum class Collective : std::uint8_t {
  kAllReduce,
  kBroadcast,
  kReduce,
  kBarrier,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kMessage,  // from one rank to another: send and recv
};
inline constexpr int kCollectives = 10;

enum class DType : std::uint8_t {
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kBool,
  kComplex64,
  kComplex128,
  kFloat8E4M3FN,
  kFloat8E5M2,
};
inline constexpr int kDTypes = 17;

enum class Op : std::uint8_t {
  kSum,
  kAvg,
  kProd,
  kMin,
  kMax,
  kPremulSum,  // each rank scales its values by a factor of its own first
  kLogicalAnd,
  kLogicalOr,
  kLogicalXor,
  kBitwiseAnd,
  kBitwiseOr,
  kBitwiseXor,
};
inline constexpr int kOps = 12;

// Private: ordinary memory of one process. Symmetric: memory that every rank of the group has mapped, at the same
// offset on every rank.
enum class MemoryKind : std::uint8_t { kPrivate, kSymmetric };
inline constexpr int kMemoryKinds = 2;

std::string_view name(Collective collective);
std::string_view name(DType dtype);
std::string_view name(Op op);
std::string_view name(MemoryKind kind);

// Whether values of several ranks are combined.
bool reduces(Collective collective);
// Whether one rank, the root, differs from the others.
bool has_root(Collective collective);
// Whether input or output consists of one part for each rank, whose lengths may differ (Problem::counts).
bool is_vector(Collective collective);

// Size of one element in bytes.
std::size_t size_of(DType dtype);
// Real or complex: what an average, and a factor, have a meaning for.
bool is_floating(DType dtype);
// Narrower than float32, in which it is computed with: each reduction rounds its result.
bool is_narrow(DType dtype);

// The value named, or ArgumentError listing the accepted names.
Op parse_op(std::string_view text);
DType parse_dtype(std::string_view text);
Collective parse_collective(std::string_view text);
MemoryKind parse_memory(std::string_view text);

// Where a call stands.
enum class WorkState : std::uint8_t { kQueued, kActive, kDone, kFailed };

}  // namespace collectives
