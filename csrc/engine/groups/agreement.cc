#include "engine/groups/agreement.h"

#include <algorithm>
#include <utility>

namespace collectives {
namespace {

using Seconds = std::chrono::duration<double>;

// Seconds after which a note is published again when nothing has changed, which shows that the rank is there.
constexpr double kBeat = 0.2;
constexpr double kBeatsPerPatience = 10;
// A leader whose ballot was overtaken waits this long, times the number of its ballots, before the next one.
constexpr double kRetry = 0.02;

std::chrono::steady_clock::duration ticks(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(Seconds(seconds));
}

}  // namespace

Agreement::Agreement(int rank, int size)
    : rank_(rank),
      size_(size),
      note_(size),
      notes_(size, Note(size)),
      last_note_at_(size),
      lost_(size),
      team_(size),
      proposal_dead_(size) {}

void Agreement::join(Time now, double patience, std::uint32_t number, const ReservedSegment& segment) {
  note_.joined = true;
  note_.number = number;
  note_.segment = segment;
  note_.silent = RankSet(size_);
  started_ = retry_at_ = now;
  patience_ = patience;
  failure_ = Failure::kNone;
  changed_ = true;
}

void Agreement::withdraw() {
  note_.joined = false;
  note_.proposing = 0;
  ++note_.beat;
}

void Agreement::receive(int rank, const Note& note, Time now) {
  if (rank == rank_ || decided() || note_.dead.has(rank) || note.beat <= notes_[rank].beat) {
    return;
  }
  notes_[rank] = note;
  last_note_at_[rank] = now;
  if (note.dead.has(rank_)) {
    failure_ = Failure::kHeldForDead;
    return;
  }
  for (int r = 0; r < size_; ++r) {
    if (note.dead.has(r)) {
      mark_dead(r);
    }
  }
  if (note.decision.number != 0) {
    decide(note.decision);
    return;
  }
  if (note.proposing > note_.promised) {
    note_.promised = note.proposing;
    give_up_ballot(now);
    changed_ = true;
  }
  if (note.proposal.number != 0 && note.proposing == note_.promised && note_.accepted < note.proposing) {
    note_.accepted = note.proposing;
    note_.accepted_value = note.proposal;
    changed_ = true;
  }
}

void Agreement::mark_dead(int rank) {
  if (!note_.dead.has(rank) && !decided()) {
    note_.dead.add(rank);
    changed_ = true;
  }
}

void Agreement::mark_lost(int rank) { lost_.add(rank); }

bool Agreement::quorum(const RankSet& ranks, const RankSet& dead) const {
  RankSet all = ranks;
  all |= dead;
  return 2 * ranks.count() > size_ || all.count() == size_;
}

void Agreement::decide(const Survivors& value) {
  note_.decision = value;
  note_.proposing = 0;
  changed_ = true;
}

// Who is in shrink(), and who is silent.
void Agreement::update_presence(Time now) {
  RankSet answering(size_);
  RankSet silent(size_);
  for (int r = 0; r < size_; ++r) {
    if (r == rank_ || note_.dead.has(r)) {
      continue;
    }
    const bool known = notes_[r].beat != 0;
    if (lost_.has(r) || (known && !notes_[r].joined) || now - std::max(started_, last_note_at_[r]) > ticks(patience_)) {
      silent.add(r);
    } else if (known) {
      answering.add(r);
    }
  }
  if (answering != note_.answering || silent != note_.silent) {
    note_.answering = std::move(answering);
    note_.silent = std::move(silent);
    changed_ = true;
  }
}

bool Agreement::step(Time now) {
  if (note_.joined && !decided() && failure_ == Failure::kNone) {
    update_presence(now);
    RankSet present = note_.answering;
    present.add(rank_);
    RankSet known = present;
    known |= note_.silent;
    known |= note_.dead;
    if (known.count() == size_) {
      if (!quorum(present, note_.dead)) {
        failure_ = Failure::kNoQuorum;
      } else {
        int leader = 0;
        while (!present.has(leader)) {
          ++leader;
        }
        if (leader == rank_) {
          lead(now);
        }
      }
    }
  }
  if (!changed_ && (decided() || now - published_at_ < ticks(std::min(kBeat, patience_ / kBeatsPerPatience)))) {
    return false;
  }
  changed_ = false;
  published_at_ = now;
  ++note_.beat;
  return true;
}

// Whether a rank that is in shrink() knows of every other one whether it answers, is silent or is dead.
bool Agreement::others_settled(int rank, const RankSet& present) const {
  const Note& note = rank == rank_ ? note_ : notes_[rank];
  for (int r = 0; r < size_; ++r) {
    if (r != rank && !note_.dead.has(r) && !note.silent.has(r) && !note.answering.has(r) && present.has(r)) {
      return false;
    }
  }
  return true;
}

// Ranks that all receive notes from each other, with this one. Those that reach the most of the others come first, so
// that a rank some of whose connections are cut does not keep out all to which they led.
RankSet Agreement::pick_team(const RankSet& present) const {
  const auto reaches = [&](int a, int b) { return (a == rank_ ? note_ : notes_[a]).answering.has(b); };
  const auto together = [&](int a, int b) { return a == b || (reaches(a, b) && reaches(b, a)); };
  std::vector<std::pair<int, int>> order;  // how many it does not reach, and the rank
  for (int r = 0; r < size_; ++r) {
    if (present.has(r)) {
      int apart = 0;
      for (int m = 0; m < size_; ++m) {
        apart += present.has(m) && !together(r, m) ? 1 : 0;
      }
      order.emplace_back(apart, r);
    }
  }
  std::sort(order.begin(), order.end());
  RankSet team(size_);
  team.add(rank_);
  for (const auto& [apart, r] : order) {
    bool fits = true;
    for (int m = 0; fits && m < size_; ++m) {
      fits = !team.has(m) || together(r, m);
    }
    if (fits) {
      team.add(r);
    }
  }
  return team;
}

void Agreement::lead(Time now) {
  if (note_.proposing == 0) {
    RankSet present = note_.answering;
    present.add(rank_);
    for (int r = 0; r < size_; ++r) {
      if (present.has(r) && !others_settled(r, present)) {
        return;
      }
    }
    if (now < retry_at_) {
      return;
    }
    const RankSet team = pick_team(present);
    if (!quorum(team, note_.dead)) {
      failure_ = Failure::kNoQuorum;
      return;
    }
    begin_ballot(team);
  }
  RankSet accepted(size_);
  bool promised = true;
  for (int r = 0; r < size_; ++r) {
    const Note& note = r == rank_ ? note_ : notes_[r];
    if (note.promised > note_.proposing || (team_.has(r) && (note_.dead.has(r) || note_.silent.has(r)))) {
      return give_up_ballot(now);
    }
    promised = promised && (!team_.has(r) || note.promised == note_.proposing);
    if (note.accepted == note_.proposing) {
      accepted.add(r);
    }
  }
  if (note_.proposal.number == 0) {
    if (promised && quorum(team_, note_.dead)) {
      propose();
    }
  } else if (quorum(accepted, proposal_dead_)) {
    decide(note_.proposal);
  }
}

void Agreement::begin_ballot(const RankSet& team) {
  std::uint64_t highest = note_.promised;
  for (const Note& note : notes_) {
    highest = std::max({highest, note.promised, note.proposing});
  }
  const auto size = static_cast<std::uint64_t>(size_);
  note_.proposing = note_.promised = (highest / size + 1) * size + static_cast<std::uint64_t>(rank_);
  note_.proposal = {RankSet(size_), 0};
  team_ = team;
  ++ballots_;
  changed_ = true;
}

void Agreement::propose() {
  std::uint64_t highest = 0;
  note_.proposal = {team_, note_.number};
  for (int r = 0; r < size_; ++r) {
    const Note& note = r == rank_ ? note_ : notes_[r];
    if (team_.has(r) && note.accepted > highest) {
      highest = note.accepted;
      note_.proposal = note.accepted_value;
    }
  }
  proposal_dead_ = note_.dead;
  note_.accepted = note_.proposing;
  note_.accepted_value = note_.proposal;
  changed_ = true;
}

void Agreement::give_up_ballot(Time now) {
  note_.proposing = 0;
  note_.proposal = {RankSet(size_), 0};
  retry_at_ = now + ticks(kRetry * (1 + ballots_));
  changed_ = true;
}

}  // namespace collectives
