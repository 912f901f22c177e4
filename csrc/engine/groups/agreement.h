// How the ranks of a communicator agree which of them go on without the others: the part that knows nothing of memory
// and links.
//
// It is Paxos for one decision, over notes (note.h). The lowest rank that is known to be in shrink() leads.
// It waits until every rank is in shrink(), dead by proof, or silent for longer than the time limit, and picks a team:
// ranks that all receive notes from each other. It writes a ballot number into its note. Ranks that see a ballot higher
// than any before promise it: they accept no lower one any more. When the whole team has promised, the leader proposes
// the team, or what the member with the highest accepted ballot has accepted before. Ranks accept a proposal unless
// they have promised a higher ballot. When a quorum has accepted, the leader has decided, and so has every rank that
// reads this in its note.
//
// A quorum is a strict majority of all ranks, or all ranks but those that are dead by proof. So a rank that is silent
// counts against the majority and one that is dead does not.
//
// Why no two decisions differ, whatever dies or stops when. Two quorums of the first kind have a rank in common, and
// then this is the known argument: of two ballots the higher one either finds what a quorum has accepted in the lower
// one, or has the promise of a common rank that keeps the lower one from being accepted. If the quorums Q and R have
// no rank in common, one of them consists of ranks that were dead when the other was formed, say those of Q. Every note
// names the ranks that its writer holds for dead, and a rank that reads a note holds them for dead before it does
// anything else, and reads no further note of theirs. A leader counts as dead only those that the note with its
// proposal names. So all of R have stopped reading the notes of Q when they promise or accept, and no rank of Q takes
// another step. A rank that had learnt the decision of Q before is in R, since only dead ranks are not, or its note has
// come to one that is, which answers with the decision instead of accepting. So either R decides the same, or only dead
// ranks knew of the other decision. Hence there never are two groups of living ranks that both believe to be the
// survivors.
//
// All this rests on proofs of death being right, and on nothing else: silence, clocks and who leads only decide whether
// and how fast there is a decision.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "engine/groups/note.h"

namespace collectives {

class Agreement {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Agreement(int rank, int size);

  // Takes part, until withdraw(): number and segment go into the notes. patience: seconds of silence until a rank
  // counts as silent. May be called again after withdraw() and after failed().
  void join(Time now, double patience, std::uint32_t number, const ReservedSegment& segment);
  void withdraw();

  // A note of another rank. Older notes, and those of dead ranks, are ignored.
  void receive(int rank, const Note& note, Time now);
  // The rank has ended, or has left the communicator without a decision: it takes no further step.
  void mark_dead(int rank);
  // Nothing can be sent to the rank any more, or received, which does not prove that it ended.
  void mark_lost(int rank);

  // Does what is to be done. True when the own note has changed, so that the others should have it.
  bool step(Time now);

  const Note& note() const { return note_; }
  bool decided() const { return note_.decision.number != 0; }
  const Survivors& decision() const { return note_.decision; }

  enum class Failure : std::uint8_t {
    kNone,
    kNoQuorum,     // the ranks that answer are too few
    kHeldForDead,  // others hold this rank for dead
  };
  Failure failure() const { return failure_; }
  // Who does not answer and is not known to be dead.
  const RankSet& silent() const { return note_.silent; }
  const RankSet& dead() const { return note_.dead; }

 private:
  bool quorum(const RankSet& ranks, const RankSet& dead) const;
  bool others_settled(int rank, const RankSet& present) const;
  void update_presence(Time now);
  void decide(const Survivors& value);
  void lead(Time now);
  void begin_ballot(const RankSet& team);
  void propose();
  void give_up_ballot(Time now);
  RankSet pick_team(const RankSet& present) const;

  int rank_;
  int size_;
  Note note_;
  std::vector<Note> notes_;
  std::vector<Time> last_note_at_;
  RankSet lost_;
  Time started_;
  Time published_at_;
  Time retry_at_;
  double patience_ = 0;
  Failure failure_ = Failure::kNone;
  bool changed_ = false;
  RankSet team_;           // whose promises the ballot needs
  RankSet proposal_dead_;  // whom the note with the proposal names
  int ballots_ = 0;
};

}  // namespace collectives
