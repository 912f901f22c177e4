#include "engine/groups/meeting.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "core/hash.h"
#include "engine/failure/words.h"

namespace collectives {

Meeting::Meeting(Communicator& parent, std::vector<int> members, const MeetingKey& kind, double patience)
    : parent_(parent), members_(std::move(members)), kind_(kind), patience_(patience), since_(Clock::now()) {
  parent_.refuse_after_fork();
  for (std::size_t m = 0; m < members_.size(); ++m) {
    world_ranks_.push_back(parent_.members().world_rank(members_[m]));
    self_ = members_[m] == parent_.rank() ? m : self_;
  }
  lines_.resize(members_.size());
  const std::lock_guard guard(parent_.engine()->lock());
  parent_.act_on_report_before_call();
}

Meeting::~Meeting() {
  if (!line_ || parent_.engine()->forked()) {
    return;
  }
  const std::lock_guard guard(parent_.engine()->lock());
  try {
    read_lines();
    if (lines_[self_].ready != 0 && together() == lines_[self_].ready) {
      quit();
    } else {
      if (reservation_ != nullptr) {
        reservation_->cancel();
      }
      board().wipe(*line_);
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a destructor has nobody to tell
    // Without memory for that much, the others wait until their time is up.
  }
}

// Tells the members that have made the group, and those that will, that this one has left it.
void Meeting::quit() {
  lines_[self_].made = lines_[self_].quit = true;
  board().show(*line_, lines_[self_]);
  board().leave(*line_);
  board().count(kind_);
  for (const int m : members_) {
    if (Link* link = parent_.members().process_link(m); link != nullptr) {
      link->send_control(leaving(self_).encode(kReportBytes));
    }
  }
}

// What a member that shares no memory with another says when it leaves the group.
Report Meeting::leaving(std::size_t member) const {
  Report report;
  report.kind = ErrorKind::kNone;
  report.communicator = lines_[0].number;
  report.reporter = static_cast<int>(member);
  return report;
}

bool Meeting::wait(double seconds) {
  Next next = Next::kWait;
  {
    const std::lock_guard guard(parent_.engine()->lock());
    parent_.engine()->wait([&] { return (next = look()) != Next::kWait; }, seconds);
  }
  if (next == Next::kReserve) {
    reservation_ = std::make_unique<Reservation>(parent_, lines_[0].number, members_);
    if (!reservation_->claimed()) {
      raise(ErrorKind::kGeneric, members_[0],
            parent_.members().describe(members_[0]) + " has given the group a number that none can have");
    }
    const std::lock_guard guard(parent_.engine()->lock());
    lines_[self_].ready = together();  // of the lines that it has reserved for
    lines_[self_].segment = reservation_->reserved();
    since_ = Clock::now();
    show();
  } else if (next == Next::kBeginAgain) {
    reservation_->cancel();  // no member has come to its segment
    reservation_.reset();
    since_ = Clock::now();
    const std::lock_guard guard(parent_.engine()->lock());
    begin_round();
  }
  return next == Next::kEnd;
}

Meeting::Next Meeting::look() {
  try {
    return look_at_lines();
  } catch (const std::exception&) {
    error_ = std::current_exception();
    return Next::kEnd;
  }
}

Meeting::Next Meeting::look_at_lines() {
  Engine& engine = *parent_.engine();
  if (!line_) {
    come();
  }
  engine.progress_links();
  engine.handle_link_events();
  // First who is gone, then the lines: what a rank showed before it ended counts.
  std::vector<bool> gone;
  for (const int m : members_) {
    gone.push_back(m != parent_.rank() && parent_.members().peer(m).state != Peer::State::kThere);
  }
  read_lines();
  const std::uint64_t now = together();
  const BoardLine& own = lines_[self_];
  if (now != 0 && std::ranges::all_of(lines_, [&](const BoardLine& line) { return line.ready == now; })) {
    return Next::kEnd;
  }
  refuse_missing_for_good(gone);
  if (own.ready != 0) {
    // Whatever else fails now, the others may all be ready.
    if (own.ready != now) {
      return Next::kBeginAgain;
    }
  } else {
    // Another rank may have noticed before this one that a member is gone.
    if (const auto failure = parent_.known_failure(); failure != nullptr) {
      raise(failure->kind(), failure->context().peer,
            (parent_.closed() ? "" : "the communicator has failed: ") + std::string(failure->what()));
    }
    const auto waits = [&](const BoardLine& line) { return line.ready == 0 || line.ready == now; };
    if (now != 0 && std::ranges::all_of(lines_, waits)) {
      return Next::kReserve;
    }
  }
  // Those that have all come are only late where one is stopped.
  const double patience = own.ready != 0 ? std::max(patience_, parent_.options().timeout_s) : patience_;
  if (seconds_since(since_, Clock::now()) >= patience) {
    raise_late(patience);
  }
  return Next::kWait;
}

// Takes a line of the own board, when there is one.
void Meeting::come() {
  key_ = board().next_of(kind_);
  if (board().has(key_)) {
    raise(ErrorKind::kGeneric, -1,
          "another thread of this rank makes a group of the same ranks; give each group a tag of its own");
  }
  line_ = board().take(key_, world_ranks_);
  if (line_) {
    begin_round();
  }
}

void Meeting::begin_round() {
  lines_[self_] = {};
  lines_[self_].key = key_;
  lines_[self_].round = board().next_round();
  lines_[self_].number = self_ == 0 ? parent_.engine()->group_number() : 0;
  show();
}

void Meeting::show() {
  board().show(*line_, lines_[self_]);
  for (const int m : members_) {
    if (m != parent_.rank() && parent_.members().maps(m)) {
      parent_.domain()->wake(m);
    }
  }
}

void Meeting::read_lines() {
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (m != self_) {
      lines_[m] = board().find(world_ranks_[m], key_).value_or(BoardLine());
    }
  }
}

// A hash of the rounds of all members; 0 when one has not come.
std::uint64_t Meeting::together() const {
  std::uint64_t hash = kHashStart;
  for (const BoardLine& line : lines_) {
    if (line.round == 0) {
      return 0;
    }
    hash = hash_with(hash, static_cast<std::int64_t>(line.round));
  }
  return hash == 0 ? 1 : hash;
}

// Throws when a member that has not done its part never will. gone: before the lines were read.
void Meeting::refuse_missing_for_good(const std::vector<bool>& gone) const {
  for (std::size_t m = 0; m < members_.size(); ++m) {
    const bool has_done = lines_[m].ready != 0 && lines_[m].ready == lines_[self_].ready;
    if (m == self_ || has_done) {
      continue;
    }
    const std::string who = parent_.members().describe(members_[m]);
    if (gone[m]) {
      raise(ErrorKind::kPeer, members_[m],
            who + " is gone: " + parent_.members().peer(members_[m]).why + "; look at its own output for the cause");
    }
    if (lines_[m].round == 0 && parent_.members().has_left(members_[m])) {
      raise(ErrorKind::kPeer, members_[m], who + " has closed the communicator and has not made this call before");
    }
  }
}

void Meeting::raise_late(double patience) const {
  std::vector<int> late;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (m != self_ && (lines_[m].round == 0 || lines_[m].ready != lines_[self_].ready)) {
      late.push_back(members_[m]);
    }
  }
  if (late.empty()) {
    raise(ErrorKind::kDeadline, -1,
          "other threads of this rank are making " + std::to_string(kBoardLines) +
              " groups, which is the most, and none was done within " + seconds_text(patience));
  }
  raise(ErrorKind::kDeadline, late.front(),
        parent_.members().describe(late) + " did not come within " + seconds_text(patience) +
            "; each member has to call new_group with the same ranks in the same order, and the same tag");
}

void Meeting::raise(ErrorKind kind, int peer, const std::string& text) const {
  ErrorContext context;
  context.rank = parent_.rank();
  context.peer = peer;
  context.collective = "new_group";
  parent_.members().name_process(context);
  throw CollectivesError(kind, parent_.members().describe_self() + ", new_group: " + text, context);
}

std::unique_ptr<Communicator> Meeting::finish() {
  if (error_ != nullptr) {
    std::rethrow_exception(error_);
  }
  std::vector<ReservedSegment> segments;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    segments.push_back(lines_[m].segment);
    if (!lines_[m].segment.room) {
      full_.push_back(members_[m]);
    }
  }
  std::unique_ptr<Communicator> made;
  if (full_.empty()) {
    made = reservation_->make(segments);
  } else {
    reservation_->cancel();
  }
  const std::lock_guard guard(parent_.engine()->lock());
  lines_[self_].made = true;
  board().show(*line_, lines_[self_]);
  board().leave(*line_);
  board().count(kind_);
  line_.reset();
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (made != nullptr && lines_[m].quit && !made->members().maps(static_cast<int>(m))) {
      made->receive_report(world_ranks_[m], leaving(m));
    }
  }
  return made;
}

}  // namespace collectives
