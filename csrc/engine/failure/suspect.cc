#include "engine/failure/suspect.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "engine/failure/words.h"

namespace collectives {
namespace {

// How long a rank that is alive may take to answer, as a part of the time that the collective took, within bounds: a
// busy machine may not let it run at once, and after a long wait the right name is worth a little more of it.
constexpr double kPatience = 1.0 / 6;
constexpr double kLeastPatience = 0.5;  // seconds
constexpr double kMostPatience = 5;

}  // namespace

void find_suspect(Report& error, FailureReports& reports, const InFlight& in_flight) {
  const Members& members = reports.members();
  const Clock::time_point now = Clock::now();
  double age = 0;
  for (const auto& work : in_flight.pending()) {
    age = std::max(age, work->posted ? seconds_since(*work->posted, now) : 0);
  }
  const double patience = std::clamp(age * kPatience, kLeastPatience, kMostPatience);
  // Breadth first from the rank whose time was up. The silent ones first, then those that wait for none.
  std::vector<int> order;
  std::vector<int> silent;
  std::vector<int> idle;
  bool origin_reported = false;
  const auto follow = [&] {
    // The report of the rank whose time was up may come later than that of a rank which has received it. Where it does
    // not come at all, the search begins at that other rank.
    Report first;
    origin_reported = reports.find(error.origin, &first);
    order = {origin_reported ? error.origin : error.reporter};
    silent.clear();
    idle.clear();
    for (std::size_t i = 0; i < order.size(); ++i) {
      Report answer;
      if (!reports.find(order[i], &answer)) {
        silent.push_back(order[i]);
      } else if (answer.waits.empty() && answer.kind == ErrorKind::kDeadline) {
        idle.push_back(order[i]);
      }
      for (const int next : answer.waits) {
        if (next >= 0 && next < members.size() && std::find(order.begin(), order.end(), next) == order.end()) {
          order.push_back(next);
        }
      }
    }
  };
  for (follow(); !(origin_reported && silent.empty()) && seconds_since(now, Clock::now()) < patience; follow()) {
    reports.engine().progress_links();
    reports.engine().handle_link_events();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::vector<int>& suspects = silent.empty() ? idle : silent;
  if (suspects.empty() || suspects.front() == order.front()) {
    // They wait for each other in a circle, as where one direction of a network is dead. This rank and those that share
    // memory with it reach each other, so the one that misses them is the one that cannot be reached.
    const auto near = [&](int r) { return r == members.rank() || members.maps(r); };
    if (error.suspect >= 0 && near(error.suspect) && !near(error.origin)) {
      error.text += "; rank " + std::to_string(error.suspect) + " was there: what it sends does not arrive at " +
                    members.describe(error.origin);
      error.suspect = error.origin;
    }
    return;
  }
  error.text += "; ";
  if (error.suspect >= 0 && std::find(suspects.begin(), suspects.end(), error.suspect) == suspects.end()) {
    error.text += "rank " + std::to_string(error.suspect) + " was there and waited for others: ";
  }
  error.suspect = suspects.front();
  error.text += members.describe(suspects) + (silent.empty() ? " has made no such call" : " does not answer");
}

}  // namespace collectives
