// What a rank publishes while a communicator shrinks: all of its state, again and again, so that only the latest note
// counts and nothing depends on one that was lost. It lies in the control page of the rank's segment for
// those that map it, and goes over links to the others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/groups/rank_set.h"
#include "engine/groups/reserved_segment.h"

namespace collectives {

// What the ranks agree about: which of them go on, under which number. Number 0: nothing.
struct Survivors {
  RankSet ranks;
  std::uint32_t number = 0;
};

struct Note {
  explicit Note(int size = 0)
      : accepted_value{RankSet(size)},
        proposal{RankSet(size)},
        decision{RankSet(size)},
        dead(size),
        answering(size),
        silent(size) {}

  std::uint64_t beat = 0;    // grows from note to note of a rank; 0: the rank has not published any
  bool joined = false;       // it is in shrink() now
  std::uint32_t number = 0;  // its proposal for the new communicator, which also marks its memory
  ReservedSegment segment;
  // See agreement.h.
  std::uint64_t promised = 0;
  std::uint64_t accepted = 0;
  Survivors accepted_value;
  std::uint64_t proposing = 0;
  Survivors proposal;
  Survivors decision;
  RankSet dead;       // ended, by proof
  RankSet answering;  // in shrink() as well, and their notes arrive
  RankSet silent;     // neither

  // How many words the note of a rank takes in a communicator of so many.
  static std::size_t words(int size);
  std::vector<std::uint64_t> encode() const;
  // Nothing when no note of a communicator of this size looks so.
  static std::optional<Note> decode(const std::vector<std::uint64_t>& words, int size);

  // A note on its way over a link, among reports.
  struct Message {
    std::uint32_t communicator = 0;
    std::vector<std::uint64_t> words;
  };
  static constexpr char kMark[] = "note ";  // reports begin with a digit
  static std::string write(std::uint32_t communicator, const std::vector<std::uint64_t>& words);
  static std::optional<Message> read(const std::string& text);
};

}  // namespace collectives
