#include "schedule/own_parts.h"

#include <algorithm>
#include <cstddef>

namespace collectives {

PartsRow PartsRow::of(int rank, std::span<const std::int64_t> gives) {
  PartsRow row;
  for (std::size_t to = 0; to < gives.size(); ++to) {
    const bool leaves = static_cast<int>(to) != rank;
    PartsRow part;
    part.total = part.most_given = part.shortest = part.shortest_filled = part.longest = gives[to];
    part.longest_to_another = leaves ? gives[to] : 0;
    const std::int64_t readers = row.readers + (leaves && gives[to] > 0 ? 1 : 0);
    if (to == 0) {
      row = part;
    } else {
      row.join(part);
    }
    row.readers = readers;
  }
  row.most_given = row.total;
  return row;
}

void PartsRow::join(const PartsRow& other) {
  total += other.total;
  most_given = std::max(most_given, other.most_given);
  longest_to_another = std::max(longest_to_another, other.longest_to_another);
  readers = std::max(readers, other.readers);
  shortest = std::min(shortest, other.shortest);
  shortest_filled = shortest_filled == 0         ? other.shortest_filled
                    : other.shortest_filled == 0 ? shortest_filled
                                                 : std::min(shortest_filled, other.shortest_filled);
  longest = std::max(longest, other.longest);
}

PlaceInRow PlaceInRow::of(int from, int to, std::span<const std::int64_t> gives) {
  PlaceInRow place;
  for (int r = 0; r < to; ++r) {
    const std::int64_t length = gives[static_cast<std::size_t>(r)];
    place.begin += length;
    place.before += r != from && length > 0 ? 1 : 0;
  }
  return place;
}

OwnParts OwnParts::of(int rank, int size, std::span<const std::int64_t> table) {
  const auto n = static_cast<std::size_t>(size);
  OwnParts own;
  own.rank = rank;
  for (int from = 0; from < size; ++from) {
    const std::span<const std::int64_t> row = table.subspan(static_cast<std::size_t>(from) * n, n);
    const PlaceInRow place = PlaceInRow::of(from, rank, row);
    const PartsRow told = PartsRow::of(from, row);
    if (from == rank) {
      own.gives.assign(row.begin(), row.end());
    }
    own.gets.push_back(row[static_cast<std::size_t>(rank)]);
    own.begins.push_back(place.begin);
    own.before.push_back(place.before);
    own.totals.push_back(told.total);
    if (from == 0) {
      own.all = told;
    } else {
      own.all.join(told);
    }
  }
  return own;
}

}  // namespace collectives
