#include "verify/values.h"

#include <algorithm>
#include <utility>

namespace collectives::verification {

Values::Values(int ranks, bool rounds) : ranks_(ranks), rounds_(rounds) {
  nodes_.resize(1);  // kUndefined
  nodes_[0].ranks.resize(static_cast<std::size_t>(ranks) / 64 + 1);
}

ValueId Values::intern(Kind kind, std::int32_t left, std::int32_t right) {
  const auto next = static_cast<ValueId>(nodes_.size());
  const auto [at, fresh] = known_.try_emplace({kind, left, right}, next);
  if (!fresh) {
    return at->second;
  }
  Node node;
  if (kind == Kind::kLeaf) {
    node.ranks.resize(static_cast<std::size_t>(ranks_) / 64 + 1);
    node.ranks[static_cast<std::size_t>(left) / 64] |= std::uint64_t{1} << (left % 64);
  } else {
    node = nodes_[left];
    for (std::size_t w = 0; kind == Kind::kPair && w < node.ranks.size(); ++w) {
      if ((node.ranks[w] & nodes_[right].ranks[w]) != 0) {
        known_.erase(at);
        throw Violation{"combines " + describe(left) + " with " + describe(right) + ": a contribution counts twice"};
      }
      node.ranks[w] |= nodes_[right].ranks[w];
    }
    node.finished = node.finished || kind == Kind::kFinish;
  }
  node.kind = kind;
  nodes_.push_back(std::move(node));
  return next;
}

ValueId Values::leaf(int rank) { return intern(Kind::kLeaf, rank, 0); }

ValueId Values::tree(const std::vector<ValueId>& operands, std::size_t low, std::size_t high) {
  if (high - low == 1) {
    return operands[low];
  }
  const std::size_t middle = low + (high - low + 1) / 2;
  const ValueId a = tree(operands, low, middle);
  const ValueId b = tree(operands, middle, high);
  return intern(Kind::kPair, std::min(a, b), std::max(a, b));  // a + b and b + a are the same bits
}

ValueId Values::reduce(const std::vector<ValueId>& operands, bool finish) {
  const auto known = reductions_.find({finish, operands});
  if (known != reductions_.end()) {
    return known->second;
  }
  for (const ValueId operand : operands) {
    if (nodes_[operand].finished) {
      throw Violation{"reduces " + describe(operand) + " although it is finished"};
    }
  }
  ValueId value = tree(operands, 0, operands.size());
  if (finish) {
    value = intern(Kind::kFinish, value, 0);
  }
  // Rounding what is rounded changes nothing.
  if (rounds_ && nodes_[value].kind != Kind::kLeaf && nodes_[value].kind != Kind::kRound) {
    value = intern(Kind::kRound, value, 0);
  }
  reductions_.emplace(std::make_pair(finish, operands), value);
  return value;
}

ValueId Values::canonical() {
  std::vector<ValueId> leaves;
  for (int r = 0; r < ranks_; ++r) {
    leaves.push_back(leaf(r));
  }
  return reduce(leaves, true);
}

ValueId Values::canonical_prefix(int end) {
  if (end == 1) {
    return reduce({leaf(0)}, true);
  }
  ValueId value = leaf(0);
  for (int r = 1; r < end; ++r) {
    value = reduce({value, leaf(r)}, false);
  }
  return value;
}

bool Values::is_prefix(ValueId value, int end) const {
  for (int r = 0; r < ranks_; ++r) {
    if (((nodes_[value].ranks[static_cast<std::size_t>(r) / 64] >> (r % 64) & 1) != 0) != (r < end)) {
      return false;
    }
  }
  return true;
}

std::string Values::describe(ValueId value) const {
  if (value == kUndefined) {
    return "nothing";
  }
  std::string text;
  int count = 0;
  for (int r = 0; r < ranks_; ++r) {
    if ((nodes_[value].ranks[static_cast<std::size_t>(r) / 64] >> (r % 64) & 1) != 0) {
      text += (text.empty() ? "" : ", ") + std::to_string(r);
      ++count;
    }
  }
  text = (count > 1 ? "the sum of ranks " : "the value of rank ") + text;
  return finished(value) ? text + " (finished)" : text;
}

}  // namespace collectives::verification
