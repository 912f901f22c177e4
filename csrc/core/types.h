// The plain vocabulary of the library: collectives, element types, reduction operations, memory kinds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtypes.h"
#include "core/ops.h"

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
  kScan,
  kExscan,
};
inline constexpr int kCollectives = 12;

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
// Whether each rank gets what the ranks up to it combine to.
bool is_prefix(Collective collective);
// Whether one rank, the root, differs from the others.
bool has_root(Collective collective);
// Whether input or output consists of one part for each rank, whose lengths may differ (Problem::counts).
bool is_vector(Collective collective);

// Size of one element in bytes.
constexpr std::size_t size_of(DType dtype) { return facts(dtype).bytes; }
constexpr bool is_complex(DType dtype) { return facts(dtype).kind == DTypeKind::kComplex; }
constexpr bool is_integer(DType dtype) {
  return facts(dtype).kind == DTypeKind::kSigned || facts(dtype).kind == DTypeKind::kUnsigned;
}
// Real or complex: what an average, and a factor, have a meaning for.
constexpr bool is_floating(DType dtype) { return facts(dtype).kind == DTypeKind::kReal || is_complex(dtype); }
// Narrower than float32, in which it is computed with: each reduction rounds its result.
constexpr bool is_narrow(DType dtype) { return facts(dtype).narrow; }
constexpr bool is_logical(Op op) { return facts(op).kind == OpKind::kLogical; }
constexpr bool is_bitwise(Op op) { return facts(op).kind == OpKind::kBitwise; }

// The value named, or ArgumentError listing the accepted names.
Op parse_op(std::string_view text);
DType parse_dtype(std::string_view text);
Collective parse_collective(std::string_view text);
MemoryKind parse_memory(std::string_view text);

// Where a call stands.
enum class WorkState : std::uint8_t { kQueued, kActive, kDone, kFailed };

}  // namespace collectives
