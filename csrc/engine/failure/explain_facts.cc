// What a rank knows about a failure at the moment when it happens: see explain.h.

#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>

#include "engine/communicator.h"
#include "engine/failure/stacks.h"
#include "engine/failure/words.h"

namespace collectives {
namespace {

// The call of that number in a communicator, where the recorder still has it.
std::optional<Recorded> find_call(const Recorder& recorder, std::uint32_t communicator, std::int64_t sequence) {
  const std::uint64_t count = recorder.count();
  for (std::uint64_t n = count; n-- > 0 && count - n <= Recorder::kKept;) {
    Recorded call;
    if (recorder.read(n, &call) && !call.is_message() && call.communicator == communicator &&
        static_cast<std::int64_t>(call.sequence) == sequence) {
      return call;
    }
  }
  return std::nullopt;
}

}  // namespace

void Communicator::note_caller() {
  if (own_page_ != nullptr) {
    std::atomic<std::uint32_t>& caller = own_page_->caller;
    const auto thread = static_cast<std::uint32_t>(thread_number());
    if (caller.load(std::memory_order_relaxed) != thread) {  // others may have the line
      caller.store(thread, std::memory_order_relaxed);
    }
  }
}

int Communicator::thread_of(int member) const {
  const std::uint32_t caller = maps(member) ? domain_->control(member).caller.load(std::memory_order_relaxed) : 0;
  if (caller != 0) {
    return static_cast<int>(caller);
  }
  return options_.mapped_transport == "local" ? -1 : peer(member).pid;  // the main thread has the number of the process
}

// The last calls before a collective, the latest first.
std::string Communicator::recent(std::int64_t sequence) const {
  constexpr std::int64_t kMost = 3;
  if (sequence <= 0) {
    return {};  // another rank may have sent any number
  }
  std::vector<std::string> calls;
  for (std::int64_t s = sequence - 1; s >= 0 && s >= sequence - kMost; --s) {
    if (const auto call = find_call(engine_->recorder(), options_.id, s); call) {
      calls.push_back(call_text(*call));
    }
  }
  return join(calls);
}

// Fills in what the others want to know.
void Communicator::note(Report& own, const Work* current) const {
  const std::vector<std::shared_ptr<Work>> works = pending();
  own.waiting = std::any_of(works.begin(), works.end(), [](const auto& work) { return !work->finished(); });
  own.posted = static_cast<std::int64_t>(next_sequence_);
  own.recent = recent(own.sequence);
  own.found.clear();
  own.seen = -1;
  if (current == nullptr || current->is_message() || own.culprit < 0 || own.culprit == rank()) {
    return;
  }
  if (maps(own.culprit)) {
    own.seen =
        domain_->header(own.culprit, current->sequence).word.load(std::memory_order_acquire) >> 8 > current->sequence
            ? 1
            : 0;
    return;
  }
  for (std::size_t i = 0; i < current->streams.size(); ++i) {
    if (current->stream_peers[i] == own.culprit) {
      own.seen = current->streams[i]->peer_seen ? 1 : 0;
    }
  }
}

void Communicator::explain(const Report& told, const Work* current) {
  const std::vector<std::shared_ptr<Work>> works = pending();
  const Work* work = current != nullptr ? current : works.empty() ? nullptr : works.front().get();
  Failure failure;
  failure.own = told;
  failure.own.text = error_->text;
  failure.explains = told.cause != Cause::kOther && told.waiting && work != nullptr && told.culprit != rank();
  failure.explains = failure.explains || (told.cause == Cause::kMismatch && told.waiting && work != nullptr);
  if (told.kind == ErrorKind::kClosed || (!failure.explains && recorder_folder().empty())) {
    return;
  }
  failure.size = size();
  if (work != nullptr) {
    Recorded call;
    failure.call = call_text(*work);
    failure.message = work->is_message();
    if (work->record != 0 && engine_->recorder().read(work->record - 1, &call)) {
      const CounterClock clock;
      failure.waited_s = static_cast<double>(clock.now_ns - clock.nanoseconds_of(call.posted)) * 1e-9;
      const std::string size = size_text(call);
      failure.call += size.empty() ? "" : " (" + size + ")";
    }
    failure.call += options_.id == 0 ? "" : " of group " + std::to_string(options_.id);
  }
  for (int r = 0; r < size(); ++r) {
    const bool culprit = r == told.culprit && told.cause != Cause::kMismatch;
    failure.places.push_back(r == rank() ? own_stack_place() : peer(r).stack_place);
    if (r == rank() || (!culprit && peer(r).state == Peer::State::kThere && !has_left(r))) {
      failure.there.push_back(r);
    }
  }
  if (const int culprit = told.culprit; culprit >= 0 && culprit != rank()) {
    failure.culprit = who(culprit);
    failure.world_culprit = world_rank(culprit);
    const bool local = options_.mapped_transport == "local";
    failure.pid = local ? getpid() : peer(culprit).pid;
    failure.place = local ? own_stack_place() : failure.places[culprit];
    failure.thread = thread_of(culprit);
    const auto completed = static_cast<std::int64_t>(
        maps(culprit) ? domain_->control(culprit).completed.load(std::memory_order_acquire) : executor_->completed);
    const std::string subject = maps(culprit) ? "the last that it completed was " : "the last before that was ";
    if (const auto call = find_call(engine_->recorder(), options_.id, completed - 1); call) {
      failure.last = subject + call_text(*call);
    } else if (completed == 0) {
      failure.last = "it has completed none before";
    }
  }
  if (options_.mapped_transport == "local") {
    std::fill(failure.places.begin(), failure.places.end(), own_stack_place());
  }
  try {
    explanation_ = std::make_unique<Explanation>(*this, std::move(failure));
  } catch (const std::system_error&) {
    explanation_ = nullptr;  // no thread to be had: the errors say what has to be said
  }
}

std::vector<std::optional<Report>> Communicator::reports() {
  std::vector<std::optional<Report>> found(size());
  for (int r = 0; r < size(); ++r) {
    if (Link* link = message_link(r); link != nullptr && peer(r).state == Peer::State::kThere) {
      link->progress();
    }
  }
  engine_->hear_links();
  for (int r = 0; r < size(); ++r) {
    if (Report report; r != rank() && collect(r, &report)) {
      found[r] = std::move(report);
    }
  }
  return found;
}

// A second report, which only ranks on other hosts wait for.
void Communicator::tell_where(const Report& own, const std::string& found) {
  Report report = own;
  report.found = found;
  const std::string text = report.encode(kReportBytes);
  for (int r = 0; r < size(); ++r) {
    if (Link* link = message_link(r); link != nullptr && peer(r).state == Peer::State::kThere) {
      link->abort(text);
    }
  }
}

}  // namespace collectives
