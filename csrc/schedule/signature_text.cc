#include "schedule/signature_text.h"

#include <sstream>
#include <vector>

#include "core/types.h"
#include "schedule/algorithm.h"

namespace collectives {
namespace {

constexpr std::uint8_t kHighBit = 0x80;
constexpr std::uint8_t kLowBits = 0x7f;

std::string algorithm_name(int id) {
  if (id == 0) {
    return "auto";
  }
  if (id == kByNccl) {
    return "nccl";
  }
  const auto& all = algorithms();
  return id <= static_cast<int>(all.size()) ? std::string(all[id - 1].name) : "unknown algorithm " + std::to_string(id);
}

template <typename Enum>
std::string safe_name(std::uint8_t value, int limit) {
  return value < limit ? std::string(name(static_cast<Enum>(value))) : "invalid value " + std::to_string(value);
}

struct Field {
  const char* label;
  std::string value;
};

std::vector<Field> fields(const Signature& s) {
  return {
      {"collective", safe_name<Collective>(s.collective, kCollectives)},
      {"op", safe_name<Op>(s.op & kLowBits, kOps)},
      {"dtype", safe_name<DType>(s.dtype & kLowBits, kDTypes)},
      {"elements", std::to_string(total_count(s))},
      {"tensors", std::to_string(s.tensors)},
      {"root", std::to_string(s.root)},
      {"algorithm", algorithm_name(s.algorithm)},
      {"memory", (s.dtype & kHighBit) != 0 ? "symmetric" : "private"},
      {"deterministic", (s.op & kHighBit) != 0 ? "True" : "False"},
  };
}

}  // namespace

std::string describe(const Signature& s) {
  std::ostringstream text;
  text << safe_name<Collective>(s.collective, kCollectives) << "(";
  const auto all = fields(s);
  for (std::size_t i = 1; i < all.size(); ++i) {
    text << (i > 1 ? ", " : "") << all[i].label << "=" << all[i].value;
  }
  text << ")";
  return text.str();
}

std::string difference(const Signature& a, int rank_a, const Signature& b, int rank_b) {
  std::ostringstream text;
  const auto left = fields(a);
  const auto right = fields(b);
  bool any = false;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i].value != right[i].value) {
      text << (any ? "; " : "") << left[i].label << ": rank " << rank_a << " has " << left[i].value << ", rank "
           << rank_b << " has " << right[i].value;
      any = true;
    }
  }
  if (!any) {
    text << ((a.dtype & kHighBit) != 0
                 ? "the symmetric arrays have different shapes, or lie at different offsets of the heap, as different "
                   "slices of an array do"
                 : "the lists of tensors, or of parts, have the same total but different lengths, shapes or names");
  }
  return text.str();
}

}  // namespace collectives
