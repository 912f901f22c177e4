#include "engine/failure/failure_facts.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/failure/stacks.h"
#include "engine/failure/words.h"
#include "recorder/recorder_text.h"

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

// The last calls before a collective, the latest first.
std::string recent(std::int64_t sequence, const FailureSources& sources) {
  constexpr std::int64_t kMost = 3;
  if (sequence <= 0) {
    return {};  // another rank may have sent any number
  }
  std::vector<std::string> calls;
  for (std::int64_t s = sequence - 1; s >= 0 && s >= sequence - kMost; --s) {
    if (const auto call = find_call(sources.recorder, sources.options.id, s); call) {
      calls.push_back(call_text(*call));
    }
  }
  return join(calls);
}

}  // namespace

void add_facts(Report& own, const Work* current, const FailureSources& sources) {
  const Members& members = sources.members;
  const std::vector<std::shared_ptr<Work>> works = sources.in_flight.pending();
  own.waiting = std::any_of(works.begin(), works.end(), [](const auto& work) { return !work->finished(); });
  own.posted = static_cast<std::int64_t>(sources.in_flight.next_sequence());
  own.recent = recent(own.sequence, sources);
  own.found.clear();
  own.seen = -1;
  if (current == nullptr || current->is_message() || own.suspect < 0 || own.suspect == members.rank()) {
    return;
  }
  if (members.maps(own.suspect)) {
    own.seen = sources.domain->header(own.suspect, current->sequence).word.load(std::memory_order_acquire) >> 8 >
                       current->sequence
                   ? 1
                   : 0;
    return;
  }
  for (std::size_t i = 0; i < current->streams.size(); ++i) {
    if (current->stream_peers[i] == own.suspect) {
      own.seen = current->streams[i]->peer_seen ? 1 : 0;
    }
  }
}

std::optional<Failure> facts_to_explain(const Report& own, const std::string& text, const Work* current,
                                        const FailureSources& sources) {
  const Members& members = sources.members;
  const std::vector<std::shared_ptr<Work>> works = sources.in_flight.pending();
  const Work* work = current != nullptr ? current : works.empty() ? nullptr : works.front().get();
  Failure failure;
  failure.own = own;
  failure.own.text = text;
  failure.explains = own.cause != Cause::kOther && own.waiting && work != nullptr && own.suspect != members.rank();
  failure.explains = failure.explains || (own.cause == Cause::kMismatch && own.waiting && work != nullptr);
  if (own.kind == ErrorKind::kClosed || (!failure.explains && recorder_folder().empty())) {
    return std::nullopt;
  }
  failure.size = members.size();
  if (work != nullptr) {
    Recorded call;
    failure.call = call_text(*work);
    failure.message = work->is_message();
    if (work->record != 0 && sources.recorder.read(work->record - 1, &call)) {
      const CounterClock clock;
      failure.waited_s = static_cast<double>(clock.now_ns - clock.nanoseconds_of(call.posted)) * 1e-9;
      const std::string size = size_text(call);
      failure.call += size.empty() ? "" : " (" + size + ")";
    }
    failure.call += sources.options.id == 0 ? "" : " of group " + std::to_string(sources.options.id);
  }
  for (int r = 0; r < members.size(); ++r) {
    const bool suspect = r == own.suspect && own.cause != Cause::kMismatch;
    failure.places.push_back(r == members.rank() ? own_stack_place() : members.peer(r).stack_place);
    if (r == members.rank() || (!suspect && members.peer(r).state == Peer::State::kThere && !members.has_left(r))) {
      failure.there.push_back(r);
    }
  }
  if (const int suspect = own.suspect; suspect >= 0 && suspect != members.rank()) {
    failure.suspect = members.describe(suspect);
    failure.world_suspect = members.world_rank(suspect);
    const bool local = members.in_one_process();
    failure.pid = local ? getpid() : members.peer(suspect).pid;
    failure.place = local ? own_stack_place() : failure.places[suspect];
    failure.thread = members.thread_of(suspect);
    const auto completed = static_cast<std::int64_t>(
        members.maps(suspect) ? sources.domain->control(suspect).completed.load(std::memory_order_acquire)
                              : sources.in_flight.completed());
    const std::string subject = members.maps(suspect) ? "the last that it completed was " : "the last before that was ";
    if (const auto call = find_call(sources.recorder, sources.options.id, completed - 1); call) {
      failure.last = subject + call_text(*call);
    } else if (completed == 0) {
      failure.last = "it has completed none before";
    }
  }
  if (members.in_one_process()) {
    std::fill(failure.places.begin(), failure.places.end(), own_stack_place());
  }
  return failure;
}

}  // namespace collectives
