// Who is to blame when the time is up.
//
// The ranks that a late collective waits for may be waiting themselves, for the one rank that has stopped. So the one
// whose time is up first tells all others, each of them answers with whom it waits for, and all follow these answers
// from the first to a rank that does not answer, or that answers that it waits for nobody.

#include <algorithm>
#include <thread>

#include "engine/communicator.h"
#include "engine/failure/words.h"

namespace collectives {
namespace {

// How long a rank that is alive may take to answer, as a part of the time that the collective took, within bounds. A
// busy machine may not let it run at once; and who waits for a deadline waits a little longer for the right name.
constexpr double kPatience = 1.0 / 6;
constexpr double kLeastPatience = 0.5;  // seconds
constexpr double kMostPatience = 5;

}  // namespace

// The ranks that keep a work from going on.
std::vector<int> Communicator::waits_for(const Work& work) const {
  const Work& blocked = active_.empty() || work.is_message() ? work : *active_.front();
  if (blocked.state.load(std::memory_order_relaxed) == WorkState::kActive) {
    return missing(blocked);
  }
  std::vector<int> ranks;
  if (domain_ == nullptr || queued_.empty()) {
    return ranks;
  }
  // It has not begun: some rank is not yet through with what it will overwrite.
  const std::uint64_t needed = slots_->needed_before(*queued_.front());
  for (int r = 0; r < size(); ++r) {
    if (r != rank() && domain_->has(r) && domain_->control(r).completed.load(std::memory_order_acquire) < needed) {
      ranks.push_back(r);
    }
  }
  return ranks;
}

std::vector<int> Communicator::waits_for_all() const {
  std::vector<int> all;
  for (const auto& work : pending()) {
    const std::vector<int> ranks = waits_for(*work);
    all.insert(all.end(), ranks.begin(), ranks.end());
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

// Corrects the error, which is a passed deadline: of whom it speaks, and its text.
void Communicator::find_culprit() {
  const Clock::time_point now = Clock::now();
  double age = 0;
  for (const auto& work : pending()) {
    age = std::max(age, work->posted ? seconds_since(*work->posted, now) : 0);
  }
  const double patience = std::clamp(age * kPatience, kLeastPatience, kMostPatience);
  // Breadth first from the rank whose time was up. The silent ones first, then those that wait for nobody.
  std::vector<int> order;
  std::vector<int> silent;
  std::vector<int> idle;
  bool told = false;
  const auto follow = [&] {
    // Its own answer may come later than that of a rank that has heard of it; where it does not come at all, that rank
    // is the next best to begin with.
    Report first;
    told = collect(error_->origin, &first);
    order = {told ? error_->origin : error_->reporter};
    silent.clear();
    idle.clear();
    for (std::size_t i = 0; i < order.size(); ++i) {
      Report answer;
      if (!collect(order[i], &answer)) {
        silent.push_back(order[i]);
      } else if (answer.waits.empty() && answer.kind == ErrorKind::kDeadline) {
        idle.push_back(order[i]);
      }
      for (const int next : answer.waits) {
        if (next >= 0 && next < size() && std::find(order.begin(), order.end(), next) == order.end()) {
          order.push_back(next);
        }
      }
    }
  };
  for (follow(); !(told && silent.empty()) && seconds_since(now, Clock::now()) < patience; follow()) {
    engine_->progress_links();
    engine_->hear_links();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::vector<int>& guilty = silent.empty() ? idle : silent;
  if (guilty.empty() || guilty.front() == order.front()) {
    // They wait for each other in a circle, as where one direction of a network is dead. This rank and those with which
    // it shares memory hear each other, so it is the one that misses them which cannot be reached.
    const auto near = [this](int r) { return r == rank() || maps(r); };
    if (error_->culprit >= 0 && near(error_->culprit) && !near(error_->origin)) {
      error_->text += "; rank " + std::to_string(error_->culprit) + " was there: what it sends does not arrive at " +
                      who(error_->origin);
      error_->culprit = error_->origin;
    }
    return;
  }
  std::vector<std::string> names;
  for (const int r : guilty) {
    names.push_back(who(r));
  }
  error_->text += "; ";
  if (error_->culprit >= 0 && std::find(guilty.begin(), guilty.end(), error_->culprit) == guilty.end()) {
    error_->text += "rank " + std::to_string(error_->culprit) + " was there and waited for others: ";
  }
  error_->culprit = guilty.front();
  error_->text += join(names) + (silent.empty() ? " has made no such call" : " does not answer");
}

}  // namespace collectives
