// What one rank knows of an all_to_all whose parts differ in length. Nobody holds the table of all lengths, which grows
// with the square of the number of ranks: a rank knows its own row and column of it, and what each rank has told all
// others about its row. All of it in elements.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace collectives {

// What a rank tells all others about the parts that it gives, its own among them; or that of all ranks together.
struct PartsRow {
  std::int64_t total = 0;
  std::int64_t most_given = 0;          // by one rank: the total, of one row
  std::int64_t longest_to_another = 0;  // the longest part that leaves its rank
  std::int64_t readers = 0;             // other ranks that get something; of all rows the most
  std::int64_t shortest = 0;
  std::int64_t shortest_filled = 0;  // of those that are not empty; 0 where all are
  std::int64_t longest = 0;

  static PartsRow of(int rank, std::span<const std::int64_t> gives);
  // That of these ranks and of another.
  void join(const PartsRow& other);
  bool operator==(const PartsRow&) const = default;
};

struct OwnParts {
  int rank = 0;
  int tensors = 1;                   // each part has as many pieces
  std::vector<std::int64_t> gives;   // to each rank
  std::vector<std::int64_t> gets;    // from each rank
  std::vector<std::int64_t> begins;  // where, in the input of each rank, the part for this one begins
  std::vector<std::int64_t> before;  // how many parts for other ranks, not empty, are before it there
  std::vector<std::int64_t> totals;  // what each rank gives
  PartsRow all;                      // of all ranks

  // As rank `rank` would know it, from the table [from * size + to].
  static OwnParts of(int rank, int size, std::span<const std::int64_t> table);
  // All parts have one length; or all that are not empty.
  bool even() const { return all.shortest == all.longest; }
  bool even_but_for_empty() const { return all.shortest_filled == all.longest; }
  bool operator==(const OwnParts&) const = default;
};

// Of a row: where the part for a rank begins, and how many parts for others, not empty, are before it.
struct PlaceInRow {
  std::int64_t begin = 0;
  std::int64_t before = 0;

  static PlaceInRow of(int from, int to, std::span<const std::int64_t> gives);
};

}  // namespace collectives
