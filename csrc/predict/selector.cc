#include "predict/selector.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>
#include <utility>

#include "schedule/schedule.h"

namespace collectives {
namespace {

// What a rank gives or gets, whichever is more.
std::int64_t bytes_of_rank(const Problem& problem, int size) {
  return problem.collective == Collective::kAllToAll ? problem.bytes() / size : problem.bytes();
}

// Sizes of one class differ by a quarter at most, and are taken for the largest of them.
std::int64_t size_class(std::int64_t bytes) {
  if (bytes <= 8) {
    return bytes == 0 ? 0 : 8;
  }
  const auto size = static_cast<std::uint64_t>(bytes);
  const std::uint64_t quarter = std::max<std::uint64_t>(1, std::bit_floor(size) / 4);
  return static_cast<std::int64_t>((size + quarter - 1) / quarter * quarter);
}

// What was simulated knows the network and the rest does not, so the two cannot be compared: in a large job what has
// too many steps to be simulated is taken only where nothing else can be.
bool less(const Prediction& a, const Prediction& b) { return a.formula != b.formula ? b.formula : a.time < b.time; }

}  // namespace

const Override* Selector::overridden(const Problem& problem, bool deterministic) const {
  const std::int64_t bytes = bytes_of_rank(problem, topology_.size);
  for (const Override& override : overrides_) {
    const Algorithm& algorithm = *override.algorithm;
    const bool here = override.ranks == 0 || (override.ranks == topology_.size && topology_.all_mapped());
    if (here && algorithm.collective == problem.collective && override.low <= bytes && bytes < override.high &&
        algorithm.unsupported(problem, topology_).empty() &&
        (!deterministic || algorithm.determinism == Determinism::kCanonical)) {
      return &override;
    }
  }
  return nullptr;
}

const Algorithm& Selector::choose(const Problem& problem, bool deterministic) {
  if (const Override* asked_for = overridden(problem, deterministic); asked_for != nullptr) {
    return *asked_for->algorithm;
  }
  const Key key{problem.collective, problem.memory, deterministic, problem.root,
                size_class(bytes_of_rank(problem, topology_.size))};
  const auto known = simulates() ? chosen_.find(key) : chosen_.end();
  if (known != chosen_.end() && known->second->unsupported(problem, topology_).empty()) {
    return *known->second;
  }
  const std::vector<const Algorithm*> candidates = by_formula(problem, deterministic);
  if (candidates.empty()) {
    throw std::logic_error("no algorithm for " + std::string(name(problem.collective)));
  }
  if (candidates.size() == 1) {
    return *candidates[0];
  }
  const Algorithm* best = candidates[0];
  if (simulates()) {
    best = fastest(candidates, problem);
    if (known == chosen_.end()) {
      chosen_.emplace(key, best);
    }
  }
  return *best;
}

// One after the other, since the schedules of all candidates in a large job would take much memory.
const Algorithm* Selector::fastest(const std::vector<const Algorithm*>& candidates, const Problem& problem) const {
  Prediction best;
  best.time = kNever;
  best.formula = true;
  for (const Algorithm* candidate : candidates) {
    const std::optional<Prediction> run = trial(*candidate, problem).run(best.formula ? kNever : best.time);
    if (const Prediction found = run ? *run : by_formula(*candidate, problem); less(found, best)) {
      best = found;
    }
  }
  return best.algorithm;
}

std::vector<const Algorithm*> Selector::by_formula(const Problem& problem, bool deterministic) const {
  std::vector<std::pair<double, const Algorithm*>> found;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective == problem.collective && algorithm.unsupported(problem, topology_).empty() &&
        (!deterministic || algorithm.determinism == Determinism::kCanonical)) {
      found.emplace_back(algorithm.cost(problem, topology_, costs_), &algorithm);
    }
  }
  // Of equal costs, the one that the registry has first: it holds algorithms in one piece, so addresses rise.
  std::sort(found.begin(), found.end());
  std::vector<const Algorithm*> candidates;
  candidates.reserve(found.size());
  for (const auto& [cost, algorithm] : found) {
    candidates.push_back(algorithm);
  }
  return candidates;
}

std::vector<Prediction> Selector::predictions(const Problem& problem) const {
  std::vector<Prediction> all;
  Picoseconds least = kNever / kMuchLonger;
  for (const Algorithm* algorithm : by_formula(problem, false)) {
    const auto run = simulates() ? trial(*algorithm, problem).run(least * kMuchLonger) : std::nullopt;
    all.push_back(run ? *run : by_formula(*algorithm, problem));
    if (run) {
      least = std::min(least, all.back().time);
    }
  }
  std::stable_sort(all.begin(), all.end(), less);
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective == problem.collective) {
      if (const std::string_view reason = algorithm.unsupported(problem, topology_); !reason.empty()) {
        all.push_back({&algorithm, reason});
      }
    }
  }
  return all;
}

Trial Selector::trial(const Algorithm& algorithm, const Problem& problem) const {
  return {algorithm, problem, size_class(bytes_of_rank(problem, topology_.size)), topology_, network_, processor_};
}

Prediction Selector::by_formula(const Algorithm& algorithm, const Problem& problem) const {
  const double us = algorithm.cost(problem, topology_, costs_);
  Prediction result{&algorithm, {}, bounded(us * static_cast<double>(kMicrosecond))};
  result.formula = true;
  return result;
}

}  // namespace collectives
