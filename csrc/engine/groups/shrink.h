// shrink(): the ranks that are left of a communicator agree which they are (agreement.h), and make a communicator of
// their own, without a collective and without meeting anew.
//
// Each rank sets memory aside for its segment before it knows the others, enough for a communicator as large as the old
// one, and says in its notes where it lies. So a rank that learns the decision has all it needs to make the
// communicator. Notes lie in the segments of the old communicator, whose memory outlives it, and go over links among
// the reports; links serve all communicators. A note that is lost does no harm: the next one says the same.
//
// A rank that was left out can do no harm either. It may go on to write into the segments of the old communicator,
// which no survivor reads any more, and knows nothing of those of the new one; what it sends over links names the old
// one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "engine/groups/agreement.h"
#include "memory/host_memory.h"

namespace collectives {

class Communicator;
struct CommunicatorOptions;

// The part of a communicator that shrinks it.
class Shrinking {
 public:
  explicit Shrinking(Communicator& communicator) : parent_(communicator) {}

  // Begins; throws where there is nothing to shrink. patience: seconds that a rank may be silent.
  void begin(double patience);
  // Goes on for so long; true when it is over.
  bool wait(double seconds);
  // The new communicator, or the error. Once, when it is over.
  std::unique_ptr<Communicator> finish();
  // The caller is interrupted.
  void give_up();

  // For the communicator, under the lock of its engine.
  void receive_note(int member, const std::vector<std::uint64_t>& words);
  // A communicator that shrink() has just made fails when a member is shrinking it already.
  void check_early_notes();
  // Throws when the others are known to have gone on without this rank.
  void refuse_left_out();

 private:
  bool step();
  void reserve();
  void listen();
  void publish();
  std::optional<Note> board(int member);
  void leave_behind();
  std::unique_ptr<Communicator> make();
  void send_failure(const std::vector<int>& old, int suspect, std::uint32_t number, const std::string& text);
  std::unique_ptr<Domain> make_domain(const std::vector<int>& old, const CommunicatorOptions& options);
  std::string names(const RankSet& ranks) const;
  [[noreturn]] void raise(ErrorKind kind, int peer, const std::string& text) const;
  [[noreturn]] void raise_left_out(const RankSet& survivors) const;

  Communicator& parent_;
  std::unique_ptr<Agreement> agreement_;
  std::vector<std::vector<std::uint64_t>> received_;  // last note of each member that shares no memory, until read
  std::vector<std::uint64_t> read_;                   // editions of their notes
  double patience_ = 0;
  bool running_ = false;
  bool used_ = false;  // it has made a communicator
  std::uint32_t number_ = 0;
  ReservedSegment reserved_;
  std::shared_ptr<GroupSegment> segment_;
};

}  // namespace collectives
