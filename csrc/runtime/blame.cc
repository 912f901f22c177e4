// Whose fault it is that a collective took too long. A rank knows for whom it waits, but that rank may be innocent: it
// may be in the same call and wait for a third one, as in a ring, or as all but one rank of a host do when the network
// is cut. So a rank that gives up tells the others for whom it waits, those that it waits for answer by their own
// report, which says the same of them, and the blame moves on to ranks that do not answer, or answer that they wait for
// nobody.

#include <algorithm>
#include <chrono>
#include <iterator>
#include <set>
#include <thread>

#include "core/error.h"
#include "runtime/communicator.h"
#include "runtime/words.h"

namespace collectives {
namespace {

// A rank that waits answers within milliseconds, and the time that a packet takes.
constexpr auto kAnswerPatience = std::chrono::seconds(1);
constexpr auto kPause = std::chrono::milliseconds(1);

}  // namespace

// For whom this rank waits: in the collective that it is at, else in its messages. Nobody when it is in no call.
std::vector<int> Communicator::waits() const {
  for (const auto& work : active_) {
    if (work->state.load(std::memory_order_relaxed) == WorkState::kActive) {
      if (std::vector<int> ranks = missing(*work); !ranks.empty()) {
        return ranks;
      }
    }
  }
  std::vector<int> ranks;
  for (const auto& work : messages_->active()) {
    if (work->state.load(std::memory_order_relaxed) == WorkState::kActive) {
      ranks.push_back(work->message.peer);
    }
  }
  return ranks;
}

// Moves the blame in a report of a missed deadline, which all others have been told, as far as answers come.
// own: for whom this rank waits.
void Communicator::move_blame(Report& report, const std::vector<int>& own) {
  if (own.empty() || report.culprit < 0 || report.culprit >= size()) {
    return;  // it was not there, so it has nobody to ask
  }
  std::set<int> waited_for;
  waited_for.insert(report.culprit);
  std::copy_if(report.waits.begin(), report.waits.end(), std::inserter(waited_for, waited_for.end()),
               [this](int r) { return r >= 0 && r < size(); });
  std::set<int> blamed;
  const auto until = Clock::now() + kAnswerPatience;
  for (bool asking = true; asking;) {
    asking = false;
    std::vector<int> open(waited_for.begin(), waited_for.end());
    blamed.clear();
    for (std::size_t i = 0; i < open.size(); ++i) {
      const int r = open[i];
      Report answer;
      const bool answered = r == rank() || collect(r, &answer);
      const std::vector<int>& next = r == rank() ? own : answer.waits;
      if (!answered || next.empty()) {
        blamed.insert(r);
        asking = asking || (!answered && peer(r).state == Peer::State::kThere);
        continue;
      }
      for (const int further : next) {
        if (further >= 0 && further < size() && waited_for.insert(further).second) {
          open.push_back(further);
        }
      }
    }
    if (!asking || Clock::now() >= until) {
      break;
    }
    for (int r = 0; r < size(); ++r) {
      if (Link* link = r == rank() ? nullptr : message_link(r); link != nullptr) {
        link->progress();
      }
    }
    engine_->hear_links();
    std::this_thread::sleep_for(kPause);
  }
  // Nobody: they wait for each other, round in a circle.
  if (blamed.empty() || blamed.contains(report.culprit)) {
    return;
  }
  std::vector<std::string> names;
  for (const int r : blamed) {
    names.push_back(who(r));
  }
  report.text += "; rank " + std::to_string(report.culprit) +
                 " was there and waited for others: nothing has come from " + join(names);
  report.culprit = *blamed.begin();
}

}  // namespace collectives
