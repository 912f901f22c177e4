// A set of ranks, a bit for each.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace collectives {

class RankSet {
 public:
  explicit RankSet(int size = 0) : words_((static_cast<std::size_t>(size) + 63) / 64) {}

  bool has(int rank) const { return (words_[index(rank)] & bit(rank)) != 0; }
  void add(int rank) { words_[index(rank)] |= bit(rank); }
  int count() const {
    int sum = 0;
    for (const std::uint64_t word : words_) {
      sum += std::popcount(word);
    }
    return sum;
  }
  bool empty() const {
    return std::all_of(words_.begin(), words_.end(), [](std::uint64_t word) { return word == 0; });
  }
  RankSet& operator|=(const RankSet& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      words_[i] |= other.words_[i];
    }
    return *this;
  }
  friend bool operator==(const RankSet&, const RankSet&) = default;

  std::vector<std::uint64_t>& words() { return words_; }
  const std::vector<std::uint64_t>& words() const { return words_; }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank) / 64; }
  static std::uint64_t bit(int rank) { return std::uint64_t{1} << (rank % 64); }

  std::vector<std::uint64_t> words_;
};

}  // namespace collectives
