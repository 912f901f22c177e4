#include "engine/failure/explain.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>

#include "core/say.h"
#include "core/thread.h"
#include "engine/failure/stacks.h"
#include "engine/failure/words.h"
#include "recorder/recorder_text.h"

namespace collectives {
namespace {

// For the others to report. Those that wait look at least every few milliseconds, if they get to run.
constexpr double kReportPatience = 1;
// For the suspect to say where it is.
constexpr double kStackPatience = 1;
// For the reader of stderr to go on, where the pipe is full.
constexpr auto kReaderPatience = std::chrono::milliseconds(500);
// The same suspect within this time is the same failure, in another communicator.
constexpr std::uint64_t kSameFailureSeconds = 10;

}  // namespace

Explanation::Explanation(FailureReports& reports, Failure failure)
    : source_(reports), failure_(std::move(failure)), reports_(failure_.size) {
  thread_ = start_thread("collectives-say", "explains a failure", [this] { run(); });
}

Explanation::~Explanation() {
  if (source_.engine().forked()) {
    new (&thread_) std::thread;  // there is none in this process: it can neither be joined nor detached
    return;
  }
  wait();
}

void Explanation::wait() {
  const std::lock_guard guard(mutex_);
  if (thread_.joinable()) {
    thread_.join();
  }
}

const Report* Explanation::report(int rank) const {
  return rank == failure_.own.reporter ? &failure_.own : reports_[rank] ? &*reports_[rank] : nullptr;
}

void Explanation::look_for_reports() {
  const std::lock_guard guard(source_.engine().lock());
  reports_ = source_.find_all();
}

bool Explanation::all_reported() const {
  return std::all_of(failure_.there.begin(), failure_.there.end(), [&](int r) { return report(r) != nullptr; });
}

int Explanation::writer(bool time_is_up) const {
  for (const int r : failure_.there) {
    const Report* known = report(r);
    if (known != nullptr && known->waiting) {
      return r;
    }
    if (known == nullptr && !time_is_up) {
      return -1;
    }
  }
  return failure_.own.reporter;
}

void Explanation::run() {
  const Recorder& recorder = source_.engine().recorder();
  if (!recorder_folder().empty()) {
    // Whoever has made this keeps the lock until the works that failed have ended, which is to be seen in the dump.
    source_.engine().lock().lock();
    source_.engine().lock().unlock();
    dump(recorder, recorder_folder(), failure_.own.text, {});
  }
  if (!failure_.explains) {
    return;
  }
  const int self = failure_.own.reporter;
  const auto patience = [](double seconds) {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  const auto until = patience(kReportPatience);
  int writing = -1;
  for (;;) {
    look_for_reports();
    const bool late = Clock::now() > until;
    writing = writer(late);
    if (late || (writing >= 0 && writing != self) || (writing == self && all_reported())) {
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const bool silent = failure_.own.cause == Cause::kSilence && !failure_.place.empty();
  const auto on_machine = [&](int r) { return same_machine(failure_.places[r], failure_.place); };
  // Of the ranks on the machine of the suspect, the lowest one that has reported looks.
  const auto near = std::find_if(failure_.there.begin(), failure_.there.end(),
                                 [&](int r) { return report(r) != nullptr && on_machine(r); });
  if (writing != self) {
    if (silent && near != failure_.there.end() && *near == self && !on_machine(writing)) {
      const std::string found = look_at_thread(failure_.place, failure_.pid, failure_.thread, kStackPatience);
      const std::lock_guard guard(source_.engine().lock());
      source_.publish_location(failure_.own, found);
    }
    return;
  }
  if (!claim()) {
    return;
  }
  std::string found;
  if (silent && failure_.thread < 0) {
    found = "it has not called this communicator yet, so its thread is not known";
  } else if (silent && on_machine(self)) {
    found = look_at_thread(failure_.place, failure_.pid, failure_.thread, kStackPatience);
  } else if (silent && near != failure_.there.end()) {
    const auto end = patience(2 * kStackPatience);
    while (found.empty() && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      look_for_reports();
      found = reports_[*near] ? reports_[*near]->found : found;
    }
  } else if (silent) {
    found = "no other rank that waits is on its host, so nothing is known of its process";
  }
  const std::string text = paragraph(found);
  say(text, kReaderPatience);
}

// One rank can be missed in several communicators. Ranks of a host agree by a word that they share.
bool Explanation::claim() const {
  if (failure_.own.cause == Cause::kMismatch || failure_.world_suspect < 0) {
    return true;
  }
  constexpr int kRankBits = 24;
  const auto now = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::seconds>(Clock::now().time_since_epoch()).count());
  const std::uint64_t mine = now << kRankBits | static_cast<std::uint64_t>(failure_.world_suspect + 1);
  Engine& engine = source_.engine();
  std::atomic<std::uint64_t>& word =
      engine.memory() != nullptr ? engine.memory()->first_page().explained : engine.explained();
  std::uint64_t before = word.load(std::memory_order_relaxed);
  do {
    const bool same = (before ^ mine) << (64 - kRankBits) == 0;
    const bool gone = failure_.own.cause == Cause::kDeath || failure_.own.cause == Cause::kUnreachable;
    if (same && (gone || now - (before >> kRankBits) < kSameFailureSeconds)) {
      return false;
    }
  } while (!word.compare_exchange_weak(before, mine, std::memory_order_relaxed));
  return true;
}

std::string Explanation::paragraph(const std::string& found) const {
  const Report& own = failure_.own;
  if (own.cause == Cause::kMismatch || own.suspect < 0) {
    return "collectives: " + failure_.call + ": " + own.text + "\n";
  }
  std::vector<int> entered;
  std::vector<int> silent;
  int seen = -1;
  for (int r = 0; r < failure_.size; ++r) {
    const Report* known = r == own.suspect ? nullptr : report(r);
    const bool waiting = known != nullptr && known->waiting;
    // A message is the call of this rank alone; the others wait elsewhere.
    if (waiting && (failure_.message ? r == own.reporter : known->posted > own.sequence)) {
      entered.push_back(r);
      seen = known->suspect == own.suspect ? std::max(seen, known->seen) : seen;
    } else if (r != own.suspect && !(waiting && failure_.message) &&
               std::count(failure_.there.begin(), failure_.there.end(), r) > 0) {
      silent.push_back(r);
    }
  }
  std::string text = "collectives: " + failure_.suspect;
  const std::string died = own.cause == Cause::kDeath         ? "died"
                           : own.cause == Cause::kUnreachable ? "cannot be reached any more"
                           : own.cause == Cause::kLeft        ? "has left the group"
                                                              : "";
  if (seen == 1) {
    text += died.empty() ? " has entered, and does not go on with, " : " " + died + " in the middle of ";
  } else {
    text += died.empty() ? " is missing from " : " " + died + " and is missing from ";
  }
  text += failure_.call;
  if (!entered.empty()) {  // where no report has come in time, it is not known
    text += ", which " + ranks_text(entered) + " entered " + seconds_text(failure_.waited_s) + " ago";
  }
  if (!failure_.last.empty()) {
    text += "; " + failure_.last;
  }
  if (!silent.empty()) {
    text += "; nothing was heard of " + ranks_text(silent);
  }
  return text + (found.empty() ? "" : "; " + found) + "\n";
}

}  // namespace collectives
