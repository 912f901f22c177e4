// How the ranks of a communicator agree who goes on without the others: the part that knows nothing of memory and
// links.
//
// It is Paxos for one decision, over notes (note.h). The lowest rank that is in shrink(), as far as one knows, leads.
// It waits until every rank is in shrink(), dead by proof, or silent for longer than the time limit, and picks a team:
// ranks that all hear each other. It writes a ballot number into its note. Ranks that see a ballot higher than any
// before promise it: they accept no lower one any more. When the whole team has promised, the leader proposes the team,
// or what the member with the highest accepted ballot has accepted before. Ranks accept a proposal unless they have
// promised a higher ballot. When a quorum has accepted, the leader has decided, and so has everybody who reads this in
// its note.
//
// A quorum is a strict majority of all ranks, or all ranks but those that are dead by proof. So a rank that is silent
// counts against the majority and one that is dead does not.
//
// Why no two decisions differ, whatever dies or stops when. Two quorums of the first kind have a rank in common, and
// then this is the known argument: of two ballots the higher one either finds what a quorum has accepted in the lower
// one, or has the promise of a common rank that keeps the lower one from being accepted. If the quorums Q and R have
// nobody in common, one of them consists of ranks that were dead when the other was formed, say those of Q. Every note
// carries whom its writer holds for dead, and whoever reads a note takes that over before anything else, and listens to
// nothing more from these ranks. A leader counts as dead only those that the note with its proposal names. So all of R
// have stopped listening to Q when they promise or accept, and nobody of Q takes another step. A rank that had learnt
// the decision of Q before is in R, since only dead ranks are not, or has told one that is; that one says so instead of
// accepting. So either R decides the same, or only dead ranks knew of the other decision. Hence there never are two
// groups of living ranks that both believe to be the survivors.
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

  // Takes part, until withdraw(): number and plot go into the notes. patience: seconds of silence until a rank counts
  // as silent. May be called again after withdraw() and after failed().
  void join(Time now, double patience, std::uint32_t number, const Plot& plot);
  void withdraw();

  // What another rank has told. Older notes, and those of dead ranks, are ignored.
  void hear(int rank, const Note& note, Time now);
  // The rank has ended, or has left the communicator without a decision: it takes no further step.
  void bury(int rank);
  // Nothing can be sent to the rank any more, or received, which does not prove that it ended.
  void lose(int rank);

  // Does what is to be done. True when the own note has changed, so that the others should have it.
  bool step(Time now);

  const Note& note() const { return note_; }
  bool decided() const { return note_.decision.number != 0; }
  const Survivors& decision() const { return note_.decision; }

  enum class Failure : std::uint8_t {
    kNone,
    kNoQuorum,  // the ranks that answer are too few
    kBuried,    // others hold this rank for dead
  };
  Failure failure() const { return failure_; }
  // Who does not answer and is not known to be dead.
  const RankSet& silent() const { return note_.silent; }
  const RankSet& dead() const { return note_.dead; }

 private:
  bool quorum(const RankSet& ranks, const RankSet& dead) const;
  bool others_settled(int rank, const RankSet& present) const;
  void look_around(Time now);
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
  std::vector<Time> heard_at_;
  RankSet lost_;
  Time started_;
  Time told_at_;
  Time retry_at_;
  double patience_ = 0;
  Failure failure_ = Failure::kNone;
  bool changed_ = false;
  RankSet team_;           // whose promises the ballot needs
  RankSet proposal_dead_;  // whom the note with the proposal names
  int ballots_ = 0;
};

}  // namespace collectives
