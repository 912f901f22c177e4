// How ranks make a group without the other ranks of its parent: what one of them does.
//
// Each member shows a line on its board (board.h) that says that it has come, and reads those of the others. Who sees
// all reserves memory for its segment and shows that it is ready, with a hash of all the lines that it has seen. Who
// sees that all are ready for the same lines makes its communicator; all the others will, too. The number is one that
// only the first member gives out, so two groups never meet in it and nobody has to ask.
//
// A member that does not come in time is an error of this call alone: a rank that gives up before it is ready wipes its
// line. A rank that is ready sees that one of the lines is another one now, and begins again, with a line of its own
// that is new as well; and it may use its memory again, since nobody can make a group whose members were not all ready.
//
// A rank that is ready never takes that back, since others may have made the group already. If it has to give up all
// the same (it is interrupted, or another member is stopped between its two lines for longer than the communicator's
// time limit), then it has made the group and left it at once, and the others learn that as of any group. So a group is
// made on all members or on none, whatever ends their patience, but for those that die.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "engine/groups/board.h"
#include "engine/groups/reservation.h"

namespace collectives {

class Meeting {
 public:
  // members: the ranks in `parent`, in the order of their new ranks, this rank among them. kind: for Board::next_of.
  // patience: seconds that they may be late.
  Meeting(Communicator& parent, std::vector<int> members, const MeetingKey& kind, double patience);
  // Gives up where it is not over.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Goes on for so long; true when it is over.
  bool wait(double seconds);
  // The communicator, or the error. Once, when it is over. nullptr when full() names members.
  std::unique_ptr<Communicator> finish();
  // The members, by their ranks in the parent, that have no memory for the group. So none makes it.
  const std::vector<int>& full() const { return full_; }

 private:
  enum class Next : std::uint8_t { kWait, kReserve, kBeginAgain, kEnd };

  Next look();
  Next look_at_lines();
  void come();
  void begin_round();
  void show();
  void quit();
  Report leaving(std::size_t member) const;
  void read_lines();
  std::uint64_t together() const;
  void refuse_missing_for_good(const std::vector<bool>& gone) const;
  [[noreturn]] void raise_late(double patience) const;
  [[noreturn]] void raise(ErrorKind kind, int peer, const std::string& text) const;
  Board& board() const { return parent_.engine()->board(); }

  Communicator& parent_;
  std::vector<int> members_;
  std::vector<int> world_ranks_;
  std::size_t self_ = 0;  // among the members
  MeetingKey kind_;
  MeetingKey key_;
  double patience_;
  Clock::time_point since_;       // when the wait that has the time limit began
  std::optional<int> line_;       // of the own board
  std::vector<BoardLine> lines_;  // of the members; the own one is what is shown
  std::unique_ptr<Reservation> reservation_;
  std::exception_ptr error_;
  std::vector<int> full_;
};

}  // namespace collectives
