// How a communicator fails: mismatches, deaths, deadlines. How the ranks hear of each other's failures: reports.cc.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <thread>

#include "core/error.h"
#include "runtime/communicator.h"

namespace collectives {
namespace {

double seconds_since(Clock::time_point then, Clock::time_point now) {
  return std::chrono::duration<double>(now - then).count();
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : ", ") + word;
  }
  return text;
}

std::string call_text(const Work& work) {
  std::string text = std::string(name(work.plan->problem.collective)) + " #" + std::to_string(work.sequence);
  return work.name.empty() ? text : text + " '" + work.name + "'";
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

}  // namespace

// The communicator is unusable from here on, and every pending work ends with the error. All other ranks are told, even
// when this one was told itself: whoever told it may have died before it had told everyone.
void Communicator::fail(const Report& report, const Work* about) {
  if (error_ != nullptr) {
    return;
  }
  error_ = std::make_unique<Report>(report);
  Report own = report;
  own.communicator = options_.id;
  own.reporter = rank();
  const Work* current = about != nullptr   ? about
                        : !active_.empty() ? active_.front().get()
                        : !queued_.empty() ? queued_.front().get()
                                           : nullptr;
  if (current != nullptr) {
    own.name = current->name;
    own.counts = current->counts;
  }
  tell(own);
  if (report.kind == ErrorKind::kMismatch) {
    received_[rank()] = own;
    error_->text += tensor_detail(report.culprit, report.other);
  }
  std::vector<std::shared_ptr<Work>> pending(active_.begin(), active_.end());
  pending.insert(pending.end(), queued_.begin(), queued_.end());
  for (const auto& work : pending) {
    finish(*work, *error_);
  }
  active_.clear();
  queued_.clear();
  forget_links();
  engine_->note_finished();
}

void Communicator::finish(Work& work, const Report& report) {
  if (work.finished()) {
    return;
  }
  if (work.state.load() == WorkState::kActive) {
    executor_->end(work);
  }
  ErrorContext context;
  context.rank = rank();
  context.peer = report.culprit == rank() ? report.other : report.culprit;
  context.collective = name(work.plan->problem.collective);
  context.sequence = static_cast<std::int64_t>(work.sequence);
  context.name = work.name;
  context.age_s = work.posted ? seconds_since(*work.posted, Clock::now()) : 0;
  std::string text = who(rank()) + ", " + call_text(work) + ": " + report.text;
  if (report.reporter >= 0 && report.reporter != rank() && report.kind != ErrorKind::kMismatch) {
    text += " (reported by " + who(report.reporter) + ")";
  }
  if (report.kind == ErrorKind::kMismatch) {
    text += "; all ranks must issue the same collectives in the same order";
  }
  work.error = std::make_unique<CollectivesError>(report.kind, text, context);
  work.state.store(WorkState::kFailed, std::memory_order_release);
}

// Ranks disagree about a collective.
void Communicator::mismatch(Work& work) {
  const int other = executor_->mismatched_rank();
  const Signature& mine = work.signature;
  const Signature theirs = executor_->mismatched_signature();
  const bool lower = rank() < other;
  Report report;
  report.kind = ErrorKind::kMismatch;
  report.reporter = rank();
  report.culprit = lower ? rank() : other;
  report.other = lower ? other : rank();
  report.sequence = static_cast<std::int64_t>(work.sequence);
  report.text =
      "ranks disagree: " + (lower ? difference(mine, rank(), theirs, other) : difference(theirs, other, mine, rank()));
  fail(report, &work);
  finish(work, *error_);
}

void Communicator::peer_gone(const Peer& peer) {
  const int member = member_of(peer.rank);
  if (member < 0 || error_ != nullptr || closed_ || peer.state != Peer::State::kDead || has_left(member)) {
    return;  // works that need a rank that left are found by look_after()
  }
  drive();  // what it still did may be enough
  if (error_ != nullptr) {
    return;
  }
  // Its own report, if it left one, says more than its death.
  Report last;
  if (collect(member, &last)) {
    fail(last);
    return;
  }
  Report report;
  report.kind = ErrorKind::kPeer;
  report.reporter = rank();
  report.culprit = member;
  report.sequence = static_cast<std::int64_t>(executor_->completed);
  report.text =
      who(member) + " is gone: " + peer.why + "; look at its own output for the cause, and start the job again";
  fail(report);
}

// What only needs a look every few milliseconds.
void Communicator::look_after(Clock::time_point now) {
  if (error_ != nullptr || closed_) {
    return;
  }
  heed_reports(now);
  const std::vector<std::shared_ptr<Work>> works = active_;
  for (const auto& work : works) {
    if (error_ != nullptr || work->finished()) {
      continue;
    }
    if (executor_->find_mismatch(*work)) {
      mismatch(*work);
      return;
    }
    for (const int r : executor_->missing(*work)) {
      if (!has_left(r) && peer(r).state == Peer::State::kThere) {
        continue;
      }
      // What it did before it left may be enough to go on.
      if (step(*work, 1)) {
        engine_->note_finished();
        break;
      }
      const std::vector<int> missing = executor_->missing(*work);
      if (std::find(missing.begin(), missing.end(), r) == missing.end()) {
        continue;
      }
      Report report;
      report.kind = ErrorKind::kPeer;
      report.reporter = rank();
      report.culprit = r;
      report.sequence = static_cast<std::int64_t>(work->sequence);
      report.text = who(r) + " has left the group before this collective; all ranks must issue the same collectives";
      fail(report);
      return;
    }
  }
  std::vector<std::shared_ptr<Work>> pending = active_;
  pending.insert(pending.end(), queued_.begin(), queued_.end());
  for (const auto& work : pending) {
    if (error_ == nullptr && !work->finished()) {
      check_time(*work, now);
    }
  }
  std::erase_if(active_, [](const auto& work) { return work->finished(); });
}

// Warns, and later fails, when a work takes too long.
void Communicator::check_time(Work& work, Clock::time_point now) {
  if (!work.posted) {
    work.posted = now;
  }
  const double age = seconds_since(*work.posted, now);
  const bool late = age >= work.timeout_s;
  if (!late && (work.warned || age < options_.warn_s)) {
    return;
  }
  std::vector<std::string> missing;
  int culprit = -1;
  const Work& blocked = active_.empty() ? work : *active_.front();
  if (blocked.state.load() == WorkState::kActive) {
    for (const int r : executor_->missing(blocked)) {
      missing.push_back(who(r));
      culprit = culprit < 0 ? r : culprit;
    }
  }
  const std::string waiting = call_text(work) + " has waited " + seconds_text(age) + " for " +
                              (missing.empty() ? "earlier collectives to end on all ranks" : join(missing));
  if (!late) {
    work.warned = true;
    std::fprintf(stderr, "collectives: warning: %s, %s; it gives up after %s\n", who(rank()).c_str(), waiting.c_str(),
                 seconds_text(work.timeout_s).c_str());
    return;
  }
  Report report;
  report.kind = ErrorKind::kDeadline;
  report.reporter = rank();
  report.culprit = culprit;
  report.sequence = static_cast<std::int64_t>(work.sequence);
  report.text = waiting + ", longer than its timeout of " + seconds_text(work.timeout_s) +
                "; see what those ranks do, or raise timeout= or COLLECTIVES_TIMEOUT";
  fail(report);
}

void Communicator::interrupt() {
  const std::lock_guard guard(engine_->lock());
  Report report;
  report.kind = ErrorKind::kPeer;
  report.reporter = rank();
  report.culprit = rank();
  report.sequence = static_cast<std::int64_t>(executor_->completed);
  report.text = who(rank()) + " was interrupted (Ctrl-C) in the middle of a collective";
  fail(report);
}

void Communicator::close() {
  if (Engine::forked()) {
    return;
  }
  const std::lock_guard guard(engine_->lock());
  if (closed_) {
    return;
  }
  if (!active_.empty() || !queued_.empty()) {
    Report report;
    report.kind = ErrorKind::kClosed;
    report.reporter = rank();
    report.culprit = rank();
    report.text = who(rank()) + " closed the communicator with collectives in flight";
    fail(report);
  }
  closed_ = true;
  if (!engine_->leave() && error_ == nullptr) {
    tell_left();
  }
  forget_links();
  if (domain_ != nullptr) {
    // From here on this rank touches no memory of the others, which may use it for something else.
    domain_->control(rank()).left.store(1 + next_sequence_, std::memory_order_release);
    for (int r = 0; r < size(); ++r) {
      if (r != rank() && domain_->has(r)) {
        domain_->wake(r);
      }
    }
  }
}

}  // namespace collectives
