// Abstract memory: intervals that know their value, their last writer and their readers, and find races by vector
// clocks.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "verify/values.h"

namespace collectives::verification {

// clock[q]: the last moment of rank q that is known to lie in the past. The own component is the present, which no
// other rank knows yet: it grows with every release.
using Clock = std::vector<std::uint32_t>;
void merge(Clock& into, const Clock& from);

// Who acts, and when.
struct Actor {
  int rank = 0;
  int call = 0;   // which of the repeated collectives
  int step = -1;  // -1: the user's program, outside the collective
  const Clock* clock = nullptr;
};

struct Epoch {
  int rank = -1;  // -1: never
  int call = 0;
  int step = -1;
  std::uint32_t time = 0;
};

// An access that goes on in the background: the read of a send or of a receive_reduce, or the write of a receive.
// It is over for its own rank from `own_end` on, and for another rank from when it knows `receiver_end` of `receiver`.
inline constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();
struct Background {
  Epoch start;
  std::uint32_t own_end = kNever;
  int receiver = -1;
  std::uint32_t receiver_end = kNever;
};

// What lies in a range: the value of byte x of a piece is that of byte x + shift of the contributions.
struct Piece {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  ValueId value = kUndefined;
  std::int64_t shift = 0;
  int hops = 0;  // how many links the value has crossed on its longest way here
};
using Data = std::vector<Piece>;

// The shadow of one region: a user buffer, a slot, a header line, scratch memory.
class Shadow {
 public:
  Shadow() = default;
  Shadow(std::string name, std::int64_t bytes, const std::vector<Background>* backgrounds);

  // Reads a range, relative to its start. `background` >= 0: the read goes on until that background access is over.
  // Adds to moved[w] the bytes that rank w wrote last, for w other than the reader.
  Data read(const Actor& actor, std::int64_t offset, std::int64_t bytes, int background,
            std::vector<std::int64_t>* moved);
  // Overwrites a range at once.
  void write(const Actor& actor, std::int64_t offset, const Data& data);
  // Overwrites a range at some time between the two calls.
  void begin_write(const Actor& actor, std::int64_t offset, std::int64_t bytes, int background);
  void end_write(const Actor& actor, std::int64_t offset, const Data& data);

  const std::string& name() const { return name_; }
  std::int64_t bytes() const { return bytes_; }
  const char* read_only = nullptr;  // why a schedule must not write here

 private:
  struct Cell {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    ValueId value = kUndefined;
    std::int64_t shift = 0;
    int hops = 0;
    int pending = -1;  // the background access that is writing here
    Epoch writer;
    std::vector<Epoch> readers;    // since the last write, the last of each rank
    std::vector<int> backgrounds;  // reads since the last write
  };
  // Splits at the borders of a range and returns the positions of its cells.
  std::pair<std::size_t, std::size_t> cut(std::int64_t offset, std::int64_t bytes);
  std::size_t split(std::int64_t at);
  void check_read(const Actor& actor, const Cell& cell) const;
  void check_write(const Actor& actor, const Cell& cell, int background) const;
  void replace(const Actor& actor, std::int64_t offset, const Data& data, int pending);
  [[noreturn]] void race(const char* what, const Cell& cell, const Epoch& other, const char* other_what) const;

  std::string name_;
  std::int64_t bytes_ = 0;
  const std::vector<Background>* table_ = nullptr;
  std::vector<Cell> cells_;
};

}  // namespace collectives::verification
