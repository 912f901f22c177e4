#include "engine/failure/monitor.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "core/say.h"
#include "engine/failure/words.h"

namespace collectives {
namespace {

// How long calls before the one that failed on another rank may take to end.
constexpr auto kGrace = std::chrono::milliseconds(200);
// A process that dies cannot be read a little earlier than it is known to be dead.
constexpr auto kRefusalPatience = std::chrono::milliseconds(200);

double seconds_of(Clock::time_point time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

}  // namespace

FailureMonitor::FailureMonitor(const CommunicatorOptions& options, const Members& members, InFlight& in_flight,
                               FailureReports& reports, FailureHandler& failure, Driver& driver)
    : options_(options),
      members_(members),
      in_flight_(in_flight),
      reports_(reports),
      failure_(failure),
      driver_(driver) {}

void FailureMonitor::watch(Work& work) {
  if (!work.finished()) {
    work.posted = Clock::now();
    next_time_check_ = std::min(next_time_check_, seconds_of(*work.posted) + std::min(options_.warn_s, work.timeout_s));
  }
}

void FailureMonitor::check_others(Clock::time_point now) {
  check_reports(now);
  check_refused_reads(now);
}

// Fails when another rank has. Collectives before the one that failed there can still end well, so they get a moment.
void FailureMonitor::check_reports(Clock::time_point now) {
  reports_.look();
  if (reports_.first() == nullptr || failure_.failed()) {
    return;
  }
  const std::int64_t failed_at = reports_.first()->sequence;
  const auto earlier = [&](const auto& work) { return static_cast<std::int64_t>(work->sequence) < failed_at; };
  const bool wait = std::any_of(in_flight_.active().begin(), in_flight_.active().end(), earlier) ||
                    std::any_of(in_flight_.queued().begin(), in_flight_.queued().end(), earlier);
  if (!wait || now - reports_.received_at() > kGrace) {
    failure_.act_on_report();
  }
}

void FailureMonitor::check_works(Clock::time_point now) {
  check_receives_from_any();
  check_started_works();
  if (!failure_.failed() && seconds_of(now) >= next_time_check_) {
    check_times(now);
  }
  in_flight_.remove_finished();
}

// Fails when a receive waits for a message of any rank, and all others have left.
void FailureMonitor::check_receives_from_any() {
  Messages& messages = in_flight_.messages();
  if (failure_.failed() || !messages.await_any() || members_.any_other_is_there()) {
    return;
  }
  while (messages.progress()) {  // what they did before they left may be enough
  }
  if (!messages.await_any()) {
    return;
  }
  const int first = members_.rank() == 0 ? 1 : 0;
  Report report = reports_.make(
      ErrorKind::kPeer, first,
      "all other ranks have left the group before this message, " + members_.describe(first) + " among them");
  report.cause = Cause::kLeft;
  report.sequence = static_cast<std::int64_t>(in_flight_.completed());
  failure_.fail(report);
}

// Of what is pending, which may be very much, only that which may have to end before its time.
void FailureMonitor::check_started_works() {
  const Messages& messages = in_flight_.messages();
  std::vector<std::shared_ptr<Work>> works = in_flight_.active();
  for (int r = 0; r < members_.size(); ++r) {
    if (messages.concern(r) && !members_.is_there(r)) {
      std::ranges::copy_if(messages.active(), std::back_inserter(works),
                           [r](const auto& work) { return work->message.peer == r; });
    }
  }
  Executor& executor = in_flight_.executor();
  for (const auto& work : works) {
    if (failure_.failed() || work->state.load(std::memory_order_relaxed) != WorkState::kActive) {
      continue;
    }
    if (!work->is_message() && executor.find_mismatch(*work)) {
      failure_.fail_by_mismatch(*work, executor.mismatched_rank(), executor.mismatched_signature());
    } else {
      check_ranks_that_left(work);
    }
  }
}

// Fails when a rank that lives, and that is not known to have given up, cannot be read.
void FailureMonitor::check_refused_reads(Clock::time_point now) {
  const Reading::Refusal& refusal = in_flight_.executor().refusal();
  if (refusal.rank < 0 || failure_.knows_of_failure() || in_flight_.active().empty() ||
      members_.peer(refusal.rank).state != Peer::State::kThere) {
    refused_since_.reset();
    return;
  }
  if (!refused_since_) {
    refused_since_ = now;
  }
  if (now - *refused_since_ < kRefusalPatience) {
    return;
  }
  Report report = reports_.make(ErrorKind::kPeer, refusal.rank,
                                "the kernel does not let " + members_.describe_self() + " read the memory of " +
                                    members_.describe(refusal.rank) + " any more (" +
                                    std::generic_category().message(refusal.reason) +
                                    "); has one of them changed its user, its permissions or its filters?");
  report.cause = Cause::kUnreachable;
  report.sequence = static_cast<std::int64_t>(in_flight_.active().front()->sequence);
  failure_.fail(report);
}

// Fails when the work waits for a rank that has left.
void FailureMonitor::check_ranks_that_left(const std::shared_ptr<Work>& work) {
  for (const int r : in_flight_.missing(*work)) {
    if (members_.is_there(r)) {
      continue;
    }
    // What it did before it left may be enough to go on.
    while (work->is_message() && in_flight_.messages().progress()) {
    }
    if (driver_.step(work)) {
      return;
    }
    const std::vector<int> still = in_flight_.missing(*work);
    if (std::find(still.begin(), still.end(), r) == still.end()) {
      continue;
    }
    Report report =
        reports_.make(ErrorKind::kPeer, r,
                      members_.describe(r) + " has left the group before this " +
                          (work->is_message() ? "message" : "collective; all ranks must issue the same collectives"));
    report.cause = Cause::kLeft;
    report.sequence = in_flight_.position(*work);
    failure_.fail(report);
    return;
  }
}

void FailureMonitor::check_times(Clock::time_point now) {
  next_time_check_ = std::numeric_limits<double>::infinity();
  for (const auto& work : in_flight_.pending()) {
    if (!failure_.failed() && !work->finished()) {
      work->posted = work->posted.value_or(now);
      check_time(*work, now);
      const double patience = work->warned ? work->timeout_s : std::min(options_.warn_s, work->timeout_s);
      next_time_check_ = std::min(next_time_check_, seconds_of(*work->posted) + patience);
    }
  }
}

// Warns, and later fails, when a work takes too long.
void FailureMonitor::check_time(Work& work, Clock::time_point now) {
  const double age = seconds_since(*work.posted, now);
  const bool late = age >= work.timeout_s;
  if (!late && (work.warned || age < options_.warn_s)) {
    return;
  }
  const std::vector<int> waits = in_flight_.waits_for(work);
  const std::string waiting = call_text(work) + " has waited " + seconds_text(age) + " for " +
                              (work.message.peer == Message::kAny ? "a message of any of them"
                               : waits.empty()                    ? "earlier collectives to end on all ranks"
                                                                  : members_.describe(waits));
  if (!late) {
    work.warned = true;
    say("collectives: warning: " + members_.describe_self() + ", " + waiting + "; it gives up after " +
        seconds_text(work.timeout_s) + "\n");
    return;
  }
  Report report = reports_.make(ErrorKind::kDeadline, waits.empty() ? -1 : waits.front(),
                                waiting + ", longer than its timeout of " + seconds_text(work.timeout_s) +
                                    "; see what those ranks do, or raise timeout= or COLLECTIVES_TIMEOUT");
  report.cause = Cause::kSilence;
  report.sequence = in_flight_.position(work);
  report.waits = waits;
  failure_.fail(report);
}

}  // namespace collectives
