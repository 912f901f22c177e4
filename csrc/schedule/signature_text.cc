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
  if (id == kByNccl) {
    return "nccl";
  }
  if (id == 0 || (id & kChosen) != 0) {
    return "auto";
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

std::string difference(const Signature& a, int rank_a, const Signature& b, int rank_b) {
  std::ostringstream text;
  const auto left = fields(a);
  const auto right = fields(b);
  bool any = false;
  const auto say = [&](const char* label, const std::string& of_a, const std::string& of_b) {
    text << (any ? "; " : "") << label << ": rank " << rank_a << " has " << of_a << ", rank " << rank_b << " has "
         << of_b;
    any = true;
  };
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i].value != right[i].value) {
      say(left[i].label, left[i].value, right[i].value);
    }
  }
  // What is chosen follows from the rest, so it says something only where nothing else differs.
  if (!any && a.algorithm != b.algorithm) {
    say("algorithm", "auto, which chose " + algorithm_name(a.algorithm & kLowBits),
        "auto, which chose " + algorithm_name(b.algorithm & kLowBits));
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
