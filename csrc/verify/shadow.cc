#include "verify/shadow.h"

#include <algorithm>
#include <utility>

namespace collectives::verification {
namespace {

bool knows(const Clock& clock, const Epoch& epoch) {
  return epoch.rank < 0 || clock[static_cast<std::size_t>(epoch.rank)] >= epoch.time;
}

Epoch epoch_of(const Actor& actor) {
  return {actor.rank, actor.call, actor.step, (*actor.clock)[static_cast<std::size_t>(actor.rank)]};
}

bool over(const Background& access, const Clock& clock) {
  const auto ended = [&](int rank, std::uint32_t time) {
    return rank >= 0 && time != kNever && clock[static_cast<std::size_t>(rank)] >= time;
  };
  return ended(access.start.rank, access.own_end) || ended(access.receiver, access.receiver_end);
}

std::string describe(const Epoch& epoch) {
  const std::string who = epoch.step < 0
                              ? "the user's program of rank " + std::to_string(epoch.rank)
                              : "rank " + std::to_string(epoch.rank) + " in step " + std::to_string(epoch.step);
  return who + " of call " + std::to_string(epoch.call);
}

}  // namespace

void merge(Clock& into, const Clock& from) {
  for (std::size_t i = 0; i < into.size(); ++i) {
    into[i] = std::max(into[i], from[i]);
  }
}

Shadow::Shadow(std::string name, std::int64_t bytes, const std::vector<Background>* backgrounds)
    : name_(std::move(name)), bytes_(bytes), table_(backgrounds) {
  if (bytes > 0) {
    cells_.resize(1);
    cells_[0].end = bytes;
  }
}

std::size_t Shadow::split(std::int64_t at) {
  const auto found =
      std::partition_point(cells_.begin(), cells_.end(), [&](const Cell& cell) { return cell.end <= at; });
  const auto i = static_cast<std::size_t>(found - cells_.begin());
  if (i == cells_.size() || cells_[i].begin == at) {
    return i;
  }
  Cell right = cells_[i];
  cells_[i].end = at;
  right.begin = at;
  cells_.insert(cells_.begin() + static_cast<std::ptrdiff_t>(i) + 1, std::move(right));
  return i + 1;
}

std::pair<std::size_t, std::size_t> Shadow::cut(std::int64_t offset, std::int64_t bytes) {
  const std::size_t first = split(offset);
  return {first, split(offset + bytes)};
}

void Shadow::race(const char* what, const Cell& cell, const Epoch& other, const char* other_what) const {
  throw Violation{std::string(what) + " " + name_ + " [" + std::to_string(cell.begin) + ", " +
                  std::to_string(cell.end) + "), but nothing orders it after the " + other_what + " by " +
                  describe(other)};
}

void Shadow::check_read(const Actor& actor, const Cell& cell) const {
  if (cell.pending >= 0) {
    race("reads", cell, (*table_)[static_cast<std::size_t>(cell.pending)].start, "unfinished receive");
  }
  if (!knows(*actor.clock, cell.writer)) {
    race("reads", cell, cell.writer, "write");
  }
}

void Shadow::check_write(const Actor& actor, const Cell& cell, int background) const {
  if (cell.pending >= 0) {
    race("writes", cell, (*table_)[static_cast<std::size_t>(cell.pending)].start, "unfinished receive");
  }
  if (!knows(*actor.clock, cell.writer)) {
    race("writes", cell, cell.writer, "write");
  }
  for (const Epoch& reader : cell.readers) {
    if (!knows(*actor.clock, reader)) {
      race("writes", cell, reader, "read");
    }
  }
  for (const int read : cell.backgrounds) {
    const Background& access = (*table_)[static_cast<std::size_t>(read)];
    if (read != background && !over(access, *actor.clock)) {
      race("writes", cell, access.start, "background read");
    }
  }
}

Data Shadow::read(const Actor& actor, std::int64_t offset, std::int64_t bytes, int background,
                  std::vector<std::int64_t>* moved) {
  const auto [first, last] = cut(offset, bytes);
  const Epoch now = epoch_of(actor);
  Data data;
  for (std::size_t i = first; i < last; ++i) {
    Cell& cell = cells_[i];
    check_read(actor, cell);
    if (cell.value == kUndefined || cell.writer.call != actor.call) {
      throw Violation{"reads " + name_ + " [" + std::to_string(cell.begin) + ", " + std::to_string(cell.end) +
                      "), where nothing has been written in this collective"};
    }
    if (background >= 0) {
      cell.backgrounds.push_back(background);
    } else {
      const auto same = std::find_if(cell.readers.begin(), cell.readers.end(),
                                     [&](const Epoch& reader) { return reader.rank == now.rank; });
      if (same == cell.readers.end()) {
        cell.readers.push_back(now);
      } else {
        *same = now;
      }
    }
    const bool crossed = cell.writer.rank != actor.rank;
    if (crossed && moved != nullptr) {
      (*moved)[static_cast<std::size_t>(cell.writer.rank)] += cell.end - cell.begin;
    }
    const Piece piece{cell.begin - offset, cell.end - offset, cell.value, cell.shift + offset,
                      cell.hops + (crossed ? 1 : 0)};
    if (!data.empty() && data.back().value == piece.value && data.back().shift == piece.shift &&
        data.back().hops == piece.hops) {
      data.back().end = piece.end;
    } else {
      data.push_back(piece);
    }
  }
  return data;
}

void Shadow::replace(const Actor& actor, std::int64_t offset, const Data& data, int pending) {
  const auto [first, last] = cut(offset + data.front().begin, data.back().end - data.front().begin);
  // Reuse cells in place: most writes cover one cell with one piece.
  const auto begin = cells_.begin() + static_cast<std::ptrdiff_t>(first);
  if (last - first > data.size()) {
    cells_.erase(begin + static_cast<std::ptrdiff_t>(data.size()), begin + static_cast<std::ptrdiff_t>(last - first));
  } else {
    cells_.insert(begin, data.size() - (last - first), Cell{});
  }
  for (std::size_t i = 0; i < data.size(); ++i) {
    const Piece& piece = data[i];
    Cell& cell = cells_[first + i];
    cell.begin = offset + piece.begin;
    cell.end = offset + piece.end;
    cell.value = piece.value;
    cell.shift = piece.shift - offset;
    cell.hops = piece.hops;
    cell.pending = pending;
    cell.writer = epoch_of(actor);
    cell.readers.clear();
    cell.backgrounds.clear();
  }
}

void Shadow::write(const Actor& actor, std::int64_t offset, const Data& data) {
  if (data.empty()) {
    return;
  }
  const auto [first, last] = cut(offset, data.back().end);
  for (std::size_t i = first; i < last; ++i) {
    check_write(actor, cells_[i], -1);
  }
  replace(actor, offset, data, -1);
}

void Shadow::begin_write(const Actor& actor, std::int64_t offset, std::int64_t bytes, int background) {
  const auto [first, last] = cut(offset, bytes);
  for (std::size_t i = first; i < last; ++i) {
    check_write(actor, cells_[i], background);
  }
  replace(actor, offset, {{0, bytes, kUndefined, 0, 0}}, background);
}

void Shadow::end_write(const Actor& actor, std::int64_t offset, const Data& data) {
  replace(actor, offset, data, -1);  // no rank touched it meanwhile: every access checks `pending`
}

}  // namespace collectives::verification
