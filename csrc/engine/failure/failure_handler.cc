#include "engine/failure/failure_handler.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "core/say.h"
#include "engine/failure/suspect.h"
#include "engine/failure/tensor_difference.h"
#include "engine/failure/words.h"
#include "schedule/signature_text.h"

namespace collectives {

FailureHandler::FailureHandler(Engine& engine, const Domain* domain, const CommunicatorOptions& options,
                               const Members& members, InFlight& in_flight, FailureReports& reports,
                               RepeatedCalls& calls, SymmetricHeap& heap)
    : engine_(engine),
      options_(options),
      members_(members),
      in_flight_(in_flight),
      reports_(reports),
      calls_(calls),
      heap_(heap),
      sources_{domain, options, members, in_flight, engine.recorder()} {}

void FailureHandler::fail(const Report& report, const Work* about) {
  if (error_ != nullptr) {
    return;
  }
  error_ = std::make_unique<Report>(report);
  failed_.store(true, std::memory_order_relaxed);
  calls_.forget_last();
  if (error_->origin < 0 || error_->origin == members_.rank()) {  // another rank may name this one without a reason
    error_->origin = report.reporter;
  }
  try {
    publish(report, about);
  } catch (const std::exception& problem) {
    say("collectives: warning: not all could be said of a failure: ");
    say(problem.what());
    say("\n");
  }
  end_all();
}

void FailureHandler::fail_here(ErrorKind kind, const std::string& text) {
  fail(reports_.make(kind, members_.rank(), text));
}

void FailureHandler::act_on_report(const Work* about) {
  if (reports_.first() != nullptr && error_ == nullptr) {
    fail(*reports_.first(), about);
  }
}

// To all other ranks, even when the failure is known from a report: the rank that published that one may have died
// before all had it. What only their answers can say comes into the error here.
void FailureHandler::publish(const Report& report, const Work* about) {
  Report own = *error_;
  own.communicator = options_.id;
  own.reporter = members_.rank();
  const bool about_own_deadline = report.reporter == members_.rank();
  const Work* current = about;
  for (const auto& work : in_flight_.pending()) {
    if (current == nullptr && !work->is_message() && in_flight_.position(*work) == report.sequence) {
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
  add_facts(own, current, sources_);
  if (report.kind == ErrorKind::kDeadline) {
    own.waits = about_own_deadline ? report.waits : in_flight_.waits_for_all();
  }
  reports_.publish(own);
  if (report.kind == ErrorKind::kDeadline) {
    reports_.keep_own(own);
    find_suspect(*error_, reports_, in_flight_);
    if (own.suspect != error_->suspect) {
      own.suspect = error_->suspect;
      add_facts(own, current, sources_);
    }
  }
  if (report.kind == ErrorKind::kMismatch && !report.message) {
    reports_.keep_own(own);
    error_->text += tensor_difference(reports_, report.suspect, report.other, current);
  }
  if (std::optional<Failure> facts = facts_to_explain(own, error_->text, current, sources_)) {
    try {
      explanation_ = std::make_unique<Explanation>(reports_, std::move(*facts));
    } catch (const std::system_error&) {
      explanation_ = nullptr;  // no thread to be had: the errors say what has to be said
    }
  }
}

// Nothing may escape from here: a work that is not ended goes on in memory that its caller takes for free.
void FailureHandler::end_all() noexcept {
  try {
    for (const auto& work : in_flight_.pending()) {
      finish(*work, *error_);
    }
    in_flight_.remove_all();
    members_.forget_links();
    heap_.isolate();
    engine_.note_finished();
  } catch (const std::exception& problem) {
    say("collectives: error: a failed communicator cannot end its calls (");
    say(problem.what());
    say("), so the process ends\n");
    std::abort();
  }
}

void FailureHandler::fail_by_exception() noexcept {
  try {
    std::string why = "of an unknown error";
    try {
      throw;
    } catch (const std::bad_alloc&) {
      why = "it has no memory left";
    } catch (const std::exception& error) {
      why = error.what();
    }
    fail_here(ErrorKind::kPeer, members_.describe_self() + " cannot go on in the middle of a call: " + why);
  } catch (const std::exception& problem) {
    say("collectives: error: the other ranks cannot be told that this one does not go on (");
    say(problem.what());
    say("), so the process ends\n");
    std::abort();
  }
}

void FailureHandler::fail_by_mismatch(Work& work, int other, const Signature& theirs) {
  const Signature& mine = work.signature;
  const int rank = members_.rank();
  const bool lower = rank < other;
  Report report = reports_.make(ErrorKind::kMismatch, lower ? rank : other, "ranks disagree");
  report.cause = Cause::kMismatch;
  report.other = lower ? other : rank;
  report.message = work.is_message();
  report.sequence = in_flight_.position(work);
  if (work.is_message()) {
    const bool sends = work.message.sending;
    report.text += " about a message from rank " + std::to_string(sends ? rank : other) + " to rank " +
                   std::to_string(sends ? other : rank) + ", tag " + std::to_string(work.message.tag);
  }
  report.text += ": " + (lower ? difference(mine, rank, theirs, other) : difference(theirs, other, mine, rank));
  fail(report, &work);
  finish(work, *error_);
}

void FailureHandler::refuse(Work& work, const Disagreement& found) {
  Report report = reports_.make(ErrorKind::kMismatch, found.lower_rank, found.what());
  report.cause = Cause::kMismatch;
  report.other = found.other_rank;
  finish(work, report);
}

void FailureHandler::fail_by_loss(int member, const Peer& peer) {
  // Its own report, if it left one, says more than its death.
  if (Report last; reports_.find(member, &last)) {
    fail(last);
    return;
  }
  Report report =
      reports_.make(ErrorKind::kPeer, member,
                    members_.describe(member) + " is gone: " + peer.why + members_.others_of_process(member) +
                        "; look at its own output for the cause, and start the job again");
  report.cause = peer.proven ? Cause::kDeath : Cause::kUnreachable;
  fail(report);
}

bool FailureHandler::must_fail(const Work& work) {
  reports_.look();
  if (!work.streams.empty()) {
    engine_.handle_link_events();
  }
  const auto sequence = static_cast<std::int64_t>(work.sequence);
  if (const Report* first = reports_.first(); first != nullptr && first->sequence <= sequence) {
    act_on_report(&work);
  }
  return error_ != nullptr && error_->sequence <= sequence;
}

void FailureHandler::finish(Work& work, const Report& report) {
  if (work.finished()) {
    return;
  }
  const bool begun = work.state.load(std::memory_order_relaxed) == WorkState::kActive;
  const std::int64_t done = begun ? bytes_done(work) : 0;
  if (begun) {
    if (work.is_message()) {
      in_flight_.messages().end(work);
    } else {
      in_flight_.executor().end(work);
    }
  }
  engine_.recorder().ended(work, WorkState::kFailed);
  ErrorContext context;
  context.rank = members_.rank();
  context.peer = report.suspect == members_.rank() ? report.other : report.suspect;
  context.collective = verb(work);
  context.sequence = work.is_message() ? -1 : static_cast<std::int64_t>(work.sequence);
  context.name = work.name;
  context.age_s = work.posted ? seconds_since(*work.posted, Clock::now()) : 0;
  context.bytes_done = done;
  members_.name_process(context);
  work.error = std::make_unique<CollectivesError>(report.kind, error_text(work, report, done), context);
  work.state.store(WorkState::kFailed, std::memory_order_release);
  engine_.completion().hand_over(work.callbacks);
}

std::string FailureHandler::error_text(const Work& work, const Report& report, std::int64_t done) const {
  std::string text = members_.describe_self() + ", " + call_text(work) + ": " + report.text;
  if (report.kind == ErrorKind::kMismatch) {
    text += report.message ? "; both sides must name the same dtype and lengths"
                           : "; all ranks must issue the same collectives in the same order";
  } else if (report.origin >= 0 && report.origin != members_.rank()) {
    text += " (reported by " + members_.describe(report.origin) + ")";
  }
  if (const std::int64_t all = std::max(work.input.bytes, work.output.bytes); all > 0) {
    text += "; " + bytes_text(done) + " of " + bytes_text(all) + " were done";
  }
  return text;
}

}  // namespace collectives
