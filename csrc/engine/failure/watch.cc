// What a communicator looks after every few milliseconds: disagreement, ranks that have left, and the time.

#include <algorithm>
#include <chrono>
#include <system_error>

#include "core/error.h"
#include "core/say.h"
#include "engine/communicator.h"
#include "engine/failure/words.h"

namespace collectives {
namespace {

constexpr auto kRefusalPatience = std::chrono::milliseconds(200);

double seconds_of(Clock::time_point time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

}  // namespace

std::vector<std::shared_ptr<Work>> Communicator::pending() const {
  std::vector<std::shared_ptr<Work>> all = active_;
  all.insert(all.end(), queued_.begin(), queued_.end());
  all.insert(all.end(), messages_->active().begin(), messages_->active().end());
  return all;
}

std::vector<int> Communicator::missing(const Work& work) const {
  return work.is_message() ? std::vector<int>{work.message.peer} : executor_->missing(work);
}

// Where in the order of collectives a failure of the work belongs: a message has no place of its own.
std::int64_t Communicator::position(const Work& work) const {
  return static_cast<std::int64_t>(work.is_message() ? executor_->completed : work.sequence);
}

void Communicator::look_after(Clock::time_point now) {
  if (error_ != nullptr || closed_) {
    return;
  }
  heed_reports(now);
  fail_when_refused(now);
  shrinking_.heed();
  // Not all that is pending, which may be very much: nothing else is looked at before its time.
  std::vector<std::shared_ptr<Work>> works = active_;
  for (int r = 0; r < size(); ++r) {
    if (messages_->concern(r) && !is_there(r)) {
      std::ranges::copy_if(messages_->active(), std::back_inserter(works),
                           [r](const auto& work) { return work->message.peer == r; });
    }
  }
  for (const auto& work : works) {
    if (error_ != nullptr || work->state.load(std::memory_order_relaxed) != WorkState::kActive) {
      continue;
    }
    if (!work->is_message() && executor_->find_mismatch(*work)) {
      mismatch(*work, executor_->mismatched_rank(), executor_->mismatched_signature());
    } else {
      fail_without_ranks_that_left(work);
    }
  }
  if (error_ == nullptr && seconds_of(now) >= next_check_) {
    check_times(now);
  }
  std::erase_if(active_, [](const auto& work) { return work->finished(); });
}

// From here on the work, unless it is finished, takes time.
void Communicator::watch(Work& work) {
  if (!work.finished()) {
    engine_->warm(*this);
    work.posted = Clock::now();
    next_check_ = std::min(next_check_, seconds_of(*work.posted) + std::min(options_.warn_s, work.timeout_s));
  }
}

// The same of a call that its thread is about to wait for. The next look, milliseconds from now, reads the clock: that
// would take a good part of a short call.
void Communicator::watch_soon() {
  engine_->warm(*this);
  next_check_ = 0;
}

void Communicator::check_times(Clock::time_point now) {
  const std::vector<std::shared_ptr<Work>> works = pending();
  next_check_ = std::numeric_limits<double>::infinity();
  for (const auto& work : works) {
    if (error_ == nullptr && !work->finished()) {
      work->posted = work->posted.value_or(now);
      check_time(*work, now);
      const double patience = work->warned ? work->timeout_s : std::min(options_.warn_s, work->timeout_s);
      next_check_ = std::min(next_check_, seconds_of(*work->posted) + patience);
    }
  }
}

// Fails when a rank that lives, and of which nobody has heard that it gave up, cannot be read. A process that dies
// cannot be read a little earlier than it is known to be dead.
void Communicator::fail_when_refused(Clock::time_point now) {
  const Reading::Refusal& refusal = executor_->refusal();
  if (refusal.rank < 0 || error_ != nullptr || heard_ != nullptr || active_.empty() ||
      peer(refusal.rank).state != Peer::State::kThere) {
    refused_since_.reset();
    return;
  }
  if (!refused_since_) {
    refused_since_ = now;
  }
  if (now - *refused_since_ < kRefusalPatience) {
    return;
  }
  Report report;
  report.kind = ErrorKind::kPeer;
  report.cause = Cause::kUnreachable;
  report.reporter = rank();
  report.culprit = refusal.rank;
  report.sequence = static_cast<std::int64_t>(active_.front()->sequence);
  report.text = "the kernel does not let " + who(rank()) + " read the memory of " + who(refusal.rank) + " any more (" +
                std::generic_category().message(refusal.reason) +
                "); has one of them changed its user, its permissions or its filters?";
  fail(report);
}

// Fails when the work waits for a rank that has left.
void Communicator::fail_without_ranks_that_left(const std::shared_ptr<Work>& work) {
  for (const int r : missing(*work)) {
    if (is_there(r)) {
      continue;
    }
    // What it did before it left may be enough to go on.
    while (work->is_message() && messages_->progress()) {
    }
    if (work->is_message() ? step_message(work) : step(*work, 1)) {
      engine_->note_finished();
      return;
    }
    const std::vector<int> still = missing(*work);
    if (std::find(still.begin(), still.end(), r) == still.end()) {
      continue;
    }
    Report report;
    report.kind = ErrorKind::kPeer;
    report.cause = Cause::kLeft;
    report.reporter = rank();
    report.culprit = r;
    report.sequence = position(*work);
    report.text = who(r) + " has left the group before this " +
                  (work->is_message() ? "message" : "collective; all ranks must issue the same collectives");
    fail(report);
    return;
  }
}

// Warns, and later fails, when a work takes too long.
void Communicator::check_time(Work& work, Clock::time_point now) {
  const double age = seconds_since(*work.posted, now);
  const bool late = age >= work.timeout_s;
  if (!late && (work.warned || age < options_.warn_s)) {
    return;
  }
  Report report;
  std::vector<std::string> waited_for;
  int culprit = -1;
  const std::vector<int> waits = waits_for(work);
  for (const int r : waits) {
    waited_for.push_back(who(r));
    culprit = culprit < 0 ? r : culprit;
  }
  const std::string waiting = call_text(work) + " has waited " + seconds_text(age) + " for " +
                              (waited_for.empty() ? "earlier collectives to end on all ranks" : join(waited_for));
  if (!late) {
    work.warned = true;
    say("collectives: warning: " + who(rank()) + ", " + waiting + "; it gives up after " +
        seconds_text(work.timeout_s) + "\n");
    return;
  }
  report.kind = ErrorKind::kDeadline;
  report.cause = Cause::kSilence;
  report.reporter = rank();
  report.culprit = culprit;
  report.sequence = position(work);
  report.waits = waits;
  report.text = waiting + ", longer than its timeout of " + seconds_text(work.timeout_s) +
                "; see what those ranks do, or raise timeout= or COLLECTIVES_TIMEOUT";
  fail(report);
}

}  // namespace collectives
