// How a communicator fails: mismatches, deaths, deadlines. How the ranks hear of each other's failures: reports.cc.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/say.h"
#include "engine/communicator.h"
#include "engine/failure/words.h"
#include "schedule/signature_text.h"

namespace collectives {
// The communicator is unusable from here on, and every pending work ends with the error. All other ranks are told, even
// when this one was told itself: whoever told it may have died before it had told everyone.
void Communicator::fail(const Report& report, const Work* about) {
  if (error_ != nullptr) {
    return;
  }
  error_ = std::make_unique<Report>(report);
  last_.work = nullptr;
  if (error_->origin < 0 || error_->origin == rank()) {  // another rank may say what is not so
    error_->origin = report.reporter;
  }
  try {
    tell_failure(report, about);
  } catch (const std::exception& problem) {
    say("collectives: warning: not all could be said of a failure: ");
    say(problem.what());
    say("\n");
  }
  end_all();
}

void Communicator::tell_failure(const Report& report, const Work* about) {
  Report own = *error_;
  own.communicator = options_.id;
  own.reporter = rank();
  const bool about_own_deadline = report.reporter == rank();
  const Work* current = about;
  for (const auto& work : pending()) {
    if (current == nullptr && !work->is_message() && position(*work) == report.sequence) {
      current = work.get();
    }
  }
  if (current != nullptr && !report.message) {
    own.name = current->name;
    own.counts = current->counts;
    own.shapes = current->shapes.values();
    if (current->details != nullptr && current->details->agreed) {
      own.names = current->details->names;
    }
  }
  note(own, current);
  if (report.kind == ErrorKind::kDeadline) {
    own.waits = about_own_deadline ? report.waits : waits_for_all();
  }
  tell(own);
  if (report.kind == ErrorKind::kDeadline) {
    received_[rank()] = own;
    find_culprit();
    if (own.culprit != error_->culprit) {
      own.culprit = error_->culprit;
      note(own, current);
    }
  }
  if (report.kind == ErrorKind::kMismatch && !report.message) {
    received_[rank()] = own;
    error_->text += tensor_detail(report.culprit, report.other, current);
  }
  explain(own, current);
}

// Nothing may escape from here: a work that is not ended goes on in memory that its caller takes for free.
void Communicator::end_all() noexcept {
  try {
    for (const auto& work : pending()) {
      finish(*work, *error_);
    }
    active_.clear();
    queued_.clear();
    forget_links();
    isolate_heap();
    engine_->note_finished();
  } catch (const std::exception& problem) {
    say("collectives: error: a failed communicator cannot end its calls (");
    say(problem.what());
    say("), so the process ends\n");
    std::abort();
  }
}

// Of a failure of this rank.
Report Communicator::own_report(ErrorKind kind, std::string text) const {
  Report report;
  report.kind = kind;
  report.reporter = rank();
  report.culprit = rank();
  report.sequence = static_cast<std::int64_t>(executor_->completed);
  report.text = std::move(text);
  return report;
}

void Communicator::fail_by_exception() noexcept {
  try {
    std::string why = "of an unknown error";
    try {
      throw;
    } catch (const std::bad_alloc&) {
      why = "it has no memory left";
    } catch (const std::exception& error) {
      why = error.what();
    }
    fail(own_report(ErrorKind::kPeer, who(rank()) + " cannot go on in the middle of a call: " + why));
  } catch (const std::exception& problem) {
    say("collectives: error: the other ranks cannot be told that this one does not go on (");
    say(problem.what());
    say("), so the process ends\n");
    std::abort();
  }
}

void Communicator::finish(Work& work, const Report& report) {
  if (work.finished()) {
    return;
  }
  const bool begun = work.state.load(std::memory_order_relaxed) == WorkState::kActive;
  const std::int64_t done = begun ? bytes_done(work) : 0;
  if (begun) {
    if (work.is_message()) {
      messages_->end(work);
    } else {
      executor_->end(work);
    }
  }
  engine_->recorder().ended(work, WorkState::kFailed);
  ErrorContext context;
  context.rank = rank();
  context.peer = report.culprit == rank() ? report.other : report.culprit;
  context.collective = verb(work);
  context.sequence = work.is_message() ? -1 : static_cast<std::int64_t>(work.sequence);
  context.name = work.name;
  context.age_s = work.posted ? seconds_since(*work.posted, Clock::now()) : 0;
  context.bytes_done = done;
  name_process(context);
  std::string text = who(rank()) + ", " + call_text(work) + ": " + report.text;
  if (report.origin >= 0 && report.origin != rank() && report.kind != ErrorKind::kMismatch) {
    text += " (reported by " + who(report.origin) + ")";
  }
  if (report.kind == ErrorKind::kMismatch) {
    text += report.message ? "; both sides must name the same dtype and lengths"
                           : "; all ranks must issue the same collectives in the same order";
  }
  if (const std::int64_t whole = std::max(work.input.bytes, work.output.bytes); whole > 0) {
    text += "; " + bytes_text(done) + " of " + bytes_text(whole) + " were done";
  }
  work.error = std::make_unique<CollectivesError>(report.kind, text, context);
  work.state.store(WorkState::kFailed, std::memory_order_release);
}

// Ranks disagree about a collective, or about a message.
void Communicator::mismatch(Work& work, int other, const Signature& theirs) {
  const Signature& mine = work.signature;
  const bool lower = rank() < other;
  Report report;
  report.kind = ErrorKind::kMismatch;
  report.cause = Cause::kMismatch;
  report.reporter = rank();
  report.culprit = lower ? rank() : other;
  report.other = lower ? other : rank();
  report.message = work.is_message();
  report.sequence = position(work);
  report.text = "ranks disagree";
  if (work.is_message()) {
    const bool sends = work.message.sending;
    report.text += " about a message from rank " + std::to_string(sends ? rank() : other) + " to rank " +
                   std::to_string(sends ? other : rank()) + ", tag " + std::to_string(work.message.tag);
  }
  report.text += ": " + (lower ? difference(mine, rank(), theirs, other) : difference(theirs, other, mine, rank()));
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
  report.cause = peer.proven ? Cause::kDeath : Cause::kUnreachable;
  report.reporter = rank();
  report.culprit = member;
  report.sequence = static_cast<std::int64_t>(executor_->completed);
  report.text = who(member) + " is gone: " + peer.why + others_of_process(member) +
                "; look at its own output for the cause, and start the job again";
  fail(report);
}

void Communicator::interrupt(const std::string& what) {
  const std::lock_guard guard(engine_->lock());
  try {
    fail(own_report(ErrorKind::kPeer, who(rank()) + " was interrupted (" + what + ") in the middle of a collective"));
  } catch (const std::exception&) {
    fail_by_exception();
  }
}

void Communicator::close() {
  if (engine_->forked()) {
    return;
  }
  Explanation* explanation = nullptr;
  {
    const std::lock_guard guard(engine_->lock());
    explanation = explanation_.get();
  }
  if (explanation != nullptr) {
    explanation->wait();  // it says what happened, also when the process ends now
  }
  const std::lock_guard guard(engine_->lock());
  if (closed_) {
    return;
  }
  if (busy()) {
    Report report;
    report.kind = ErrorKind::kClosed;
    report.reporter = rank();
    report.culprit = rank();
    report.text = who(rank()) + " closed the communicator with collectives in flight";
    fail(report);
  }
  closed_ = true;
  last_.work = nullptr;
  if (!engine_->leave()) {
    tell_left();
  }
  forget_links();
  if (domain_ != nullptr) {
    // From here on this rank touches no memory of the others, which may use it for something else.
    // Release: the counterpart of HostMemory::has_left().
    own_page_->left.store(1 + next_sequence_, std::memory_order_release);
    for (int r = 0; r < size(); ++r) {
      if (r != rank() && domain_->has(r)) {
        domain_->wake(r);
      }
    }
  }
}

}  // namespace collectives
