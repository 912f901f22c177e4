#include "core/types.h"

#include <array>
#include <string>

#include "core/error.h"

namespace collectives {
namespace {

template <std::size_t kCount>
using Names = std::array<std::string_view, kCount>;

// In the order of the enumerators.
constexpr Names<kCollectives> kCollectiveNames = {"all_reduce",     "broadcast",  "reduce", "barrier", "all_gather",
                                                  "reduce_scatter", "all_to_all", "gather", "scatter", "message"};
constexpr Names<kDTypes> kDTypeNames = {"float16", "bfloat16",  "float32",    "float64",       "int8",       "int16",
                                        "int32",   "int64",     "uint8",      "uint16",        "uint32",     "uint64",
                                        "bool",    "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"};
constexpr Names<kOps> kOpNames = {"sum",         "avg",         "prod",        "min",
                                  "max",         "premul_sum",  "logical_and", "logical_or",
                                  "logical_xor", "bitwise_and", "bitwise_or",  "bitwise_xor"};
constexpr Names<kMemoryKinds> kMemoryKindNames = {"private", "symmetric"};
constexpr std::array<std::uint8_t, kDTypes> kDTypeSizes = {2, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1, 8, 16, 1, 1};

template <class Enum, std::size_t kCount>
Enum parse(const Names<kCount>& names, const char* what, std::string_view text) {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
  }
  std::string message = "unknown " + std::string(what) + " \"" + std::string(text) + "\": accepted are ";
  for (std::size_t i = 0; i < kCount; ++i) {
    if (i > 0) message += ", ";
    message += names[i];
  }
  throw ArgumentError(message);
}

}  // namespace

std::string_view name(Collective collective) { return kCollectiveNames.at(static_cast<std::size_t>(collective)); }
std::string_view name(DType dtype) { return kDTypeNames.at(static_cast<std::size_t>(dtype)); }
std::string_view name(Op op) { return kOpNames.at(static_cast<std::size_t>(op)); }
std::string_view name(MemoryKind kind) { return kMemoryKindNames.at(static_cast<std::size_t>(kind)); }

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}
bool has_root(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce ||
         collective == Collective::kGather || collective == Collective::kScatter;
}
bool is_vector(Collective collective) {
  return collective >= Collective::kAllGather && collective <= Collective::kScatter;
}

std::size_t size_of(DType dtype) { return kDTypeSizes.at(static_cast<std::size_t>(dtype)); }
bool is_floating(DType dtype) { return dtype <= DType::kFloat64 || dtype >= DType::kComplex64; }
bool is_narrow(DType dtype) { return dtype <= DType::kBFloat16 || dtype >= DType::kFloat8E4M3FN; }

Op parse_op(std::string_view text) { return parse<Op>(kOpNames, "op", text); }
DType parse_dtype(std::string_view text) { return parse<DType>(kDTypeNames, "dtype", text); }
Collective parse_collective(std::string_view text) { return parse<Collective>(kCollectiveNames, "collective", text); }
MemoryKind parse_memory(std::string_view text) { return parse<MemoryKind>(kMemoryKindNames, "memory kind", text); }

}  // namespace collectives
