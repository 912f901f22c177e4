// What the ranks of a job show each other while they make groups by their members alone (meeting.h): for each rank a
// board of a few lines, on which only it writes.
//
// A board has the latest state alone, so nothing depends on one that was missed, and a rank that gives up wipes its
// line. Ranks of a host read it in the segment of the world; to others each line goes over their link, among the
// reports, and they keep a copy.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/groups/reserved_segment.h"
#include "memory/domain.h"

namespace collectives {

class Engine;

// Which group it is: a hash of the communicator it is made of, the members, the tag, and how many were made with these
// before. The same on all members.
struct MeetingKey {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const MeetingKey&, const MeetingKey&) = default;
};

// How a rank stands in the making of a group.
struct BoardLine {
  MeetingKey key;
  std::uint64_t round = 0;   // differs in all lines that the rank ever writes; 0: the line is wiped
  std::uint64_t ready = 0;   // a hash of the rounds of all members, which have all come; 0: not yet
  std::uint32_t number = 0;  // on the first member: of the new communicator
  bool made = false;         // the rank has read what it needs of the others
  bool quit = false;         // it was ready, and leaves the group at once
  ReservedSegment segment;   // once it is ready

  std::vector<std::uint64_t> encode() const;
  static BoardLine decode(const std::vector<std::uint64_t>& words);
};

// The boards as one rank sees them, and its own. Under the lock of the engine.
class Board {
 public:
  explicit Board(Engine& engine) : engine_(engine) {}

  // For the lines of this rank.
  std::uint64_t next_round() { return ++rounds_; }
  // The key of the next group, from a hash of all but the count; and that this group counts.
  MeetingKey next_of(const MeetingKey& kind) const;
  void count(const MeetingKey& kind) { ++counts_[{kind.high, kind.low}]; }
  // A line of the own board, until wipe() or leave(); nothing while all are taken. members: in the world.
  std::optional<int> take(const MeetingKey& key, const std::vector<int>& members);
  // Whether a line of the own board is about this group.
  bool has(const MeetingKey& key) const;
  // Shows the line to its members; those that share memory have yet to be woken.
  void show(int line, const BoardLine& content);
  void wipe(int line);
  // The line stays until no member needs it any more.
  void leave(int line);
  // What another rank shows of the group.
  std::optional<BoardLine> find(int world_rank, const MeetingKey& key) const;

  static constexpr char kMark[] = "board ";  // reports begin with a digit
  // A line that has come over a link.
  void receive(int world_rank, const std::string& text);

 private:
  struct Own {
    MeetingKey key;
    std::vector<int> members;  // empty: the line is free
    bool left = false;
  };
  bool shares_memory(int world_rank) const;
  bool needed(const Own& own) const;

  Engine& engine_;
  std::uint64_t rounds_ = 0;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> counts_;  // of groups, by the hash without them
  std::array<Own, kBoardLines> own_;
  std::map<int, std::array<BoardLine, kBoardLines>> copies_;  // of ranks that share no memory with this one
};

}  // namespace collectives
