#include "core/types.h"

#include <array>
#include <string>

#include "core/error.h"

namespace collectives {
namespace {

template <std::size_t kCount>
using Names = std::array<std::string_view, kCount>;

// In the order of the enumerators.
constexpr Names<kCollectives> kCollectiveNames = {"all_reduce", "broadcast",      "reduce",     "barrier",
                                                  "all_gather", "reduce_scatter", "all_to_all", "gather",
                                                  "scatter",    "message",        "scan",       "exscan"};
constexpr Names<kMemoryKinds> kMemoryKindNames = {"private", "symmetric"};

template <class Facts, std::size_t kCount>
constexpr Names<kCount> names_of(const std::array<Facts, kCount>& facts) {
  Names<kCount> names;
  for (std::size_t i = 0; i < kCount; ++i) names[i] = facts[i].name;
  return names;
}

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
std::string_view name(DType dtype) { return kDTypeFacts.at(static_cast<std::size_t>(dtype)).name; }
std::string_view name(Op op) { return kOpFacts.at(static_cast<std::size_t>(op)).name; }
std::string_view name(MemoryKind kind) { return kMemoryKindNames.at(static_cast<std::size_t>(kind)); }

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter || is_prefix(collective);
}
bool is_prefix(Collective collective) { return collective == Collective::kScan || collective == Collective::kExscan; }
bool has_root(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce ||
         collective == Collective::kGather || collective == Collective::kScatter;
}
bool is_vector(Collective collective) {
  return collective >= Collective::kAllGather && collective <= Collective::kScatter;
}

Op parse_op(std::string_view text) { return parse<Op>(names_of(kOpFacts), "op", text); }
DType parse_dtype(std::string_view text) { return parse<DType>(names_of(kDTypeFacts), "dtype", text); }
Collective parse_collective(std::string_view text) { return parse<Collective>(kCollectiveNames, "collective", text); }
MemoryKind parse_memory(std::string_view text) { return parse<MemoryKind>(kMemoryKindNames, "memory kind", text); }

}  // namespace collectives
