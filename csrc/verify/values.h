// Symbolic values: what a piece of memory holds, as the expression that made it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace collectives::verification {

// An interned expression; equal ids mean bitwise equal results.
using ValueId = std::int32_t;
inline constexpr ValueId kUndefined = 0;

// A property that does not hold. The text says what was found; the machine adds rank, call and step.
struct Violation {
  std::string text;
};

// Expressions over the contributions of the ranks. They are built as the reducers compute (reduce/reducer.h): one
// canonical tree over the operands of a step, which adds commutatively, with one rounding at its end where the type is
// a half.
class Values {
 public:
  Values(int ranks, bool rounds);

  ValueId leaf(int rank);
  // The result of one reduction step. Throws Violation when a contribution would count twice or follow a `finish`.
  ValueId reduce(const std::vector<ValueId>& operands, bool finish);
  // The tree over all ranks in order: what Determinism::kCanonical promises.
  ValueId canonical();
  // The values of ranks 0 to end - 1 in this order, each partial result rounded: what it promises of a prefix.
  ValueId canonical_prefix(int end);

  // Every rank, of the first `end` ones, contributes exactly once, and no other one.
  bool complete(ValueId value) const { return is_prefix(value, ranks_); }
  bool is_prefix(ValueId value, int end) const;
  bool finished(ValueId value) const { return nodes_[value].finished; }
  std::string describe(ValueId value) const;  // "the sum of ranks 0, 2"

 private:
  enum class Kind : std::uint8_t { kLeaf, kPair, kFinish, kRound };
  struct Node {
    std::vector<std::uint64_t> ranks;  // a set of bits
    bool finished = false;
    Kind kind = Kind::kLeaf;
  };
  ValueId intern(Kind kind, std::int32_t left, std::int32_t right);
  ValueId tree(const std::vector<ValueId>& operands, std::size_t low, std::size_t high);

  int ranks_;
  bool rounds_;
  std::vector<Node> nodes_;
  std::map<std::tuple<Kind, std::int32_t, std::int32_t>, ValueId> known_;
  std::map<std::pair<bool, std::vector<ValueId>>, ValueId> reductions_;
};

}  // namespace collectives::verification
