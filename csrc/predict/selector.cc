#include "predict/selector.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "predict/simulation.h"
#include "schedule/schedule.h"

namespace collectives {
namespace {

// Smaller jobs are simulated whole as quickly.
constexpr int kLeastFolded = 16;

constexpr Picoseconds kNever = std::numeric_limits<Picoseconds>::max();

// From this length on, time grows by as much for each further byte, so it is not simulated but drawn out as a line
// through this length and half of it.
constexpr std::int64_t kMostSimulatedBytes = 8 << 20;

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

Problem even_problem(Collective collective, std::int64_t bytes, int root, int size) {
  Problem problem;
  problem.collective = collective;
  problem.root = root;
  problem.count = (bytes + problem.element() - 1) / problem.element();
  if (is_vector(collective)) {
    const std::int64_t part = (problem.count + size - 1) / size;
    const bool all_to_all = collective == Collective::kAllToAll;
    problem.counts.assign(all_to_all ? 1 : static_cast<std::size_t>(size), part);
    problem.count = part * size * (all_to_all ? size : 1);
  }
  return problem;
}

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
    Prediction least;
    least.time = kNever;
    least.formula = true;
    for (const Algorithm* candidate : candidates) {
      if (const Prediction found = predict(*candidate, problem, least.formula ? kNever : least.time);
          less(found, least)) {
        least = found;
        best = candidate;
      }
    }
    if (known == chosen_.end()) {
      chosen_.emplace(key, best);
    }
  }
  return *best;
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
    all.push_back(predict(*algorithm, problem, least * kMuchLonger));
    if (simulates() && !all.back().formula) {
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

Prediction Selector::by_cost(const Algorithm& algorithm, const Problem& problem) const {
  const double us = algorithm.cost(problem, topology_, costs_);
  Prediction result{&algorithm, {}, static_cast<Picoseconds>(us * static_cast<double>(kMicrosecond))};
  result.formula = true;
  return result;
}

Prediction Selector::predict(const Algorithm& algorithm, const Problem& problem, Picoseconds most) const {
  if (!simulates()) {
    return by_cost(algorithm, problem);
  }
  const std::int64_t bytes = size_class(bytes_of_rank(problem, topology_.size));
  if (bytes <= kMostSimulatedBytes) {
    return simulate(algorithm, problem, bytes, most);
  }
  const Prediction half = simulate(algorithm, problem, kMostSimulatedBytes / 2, most);
  if (half.formula) {
    return by_cost(algorithm, problem);
  }
  if (half.cut_off) {
    return half;
  }
  const Prediction whole = simulate(algorithm, problem, kMostSimulatedBytes, most);
  if (whole.formula || whole.cut_off) {  // it may have too many steps where half of it had not
    return whole;
  }
  const auto drawn_out = [&](Picoseconds a, Picoseconds b) {
    const auto further = static_cast<double>(bytes - kMostSimulatedBytes) / (kMostSimulatedBytes / 2.0);
    return b + static_cast<Picoseconds>(further * static_cast<double>(std::max<Picoseconds>(0, b - a)));
  };
  const Picoseconds wire = drawn_out(half.wire, whole.wire);
  const Picoseconds burst = std::max<Picoseconds>(0, whole.wire - whole.time);  // what passed ahead of the port's rate
  const Picoseconds time = std::max(wire - burst, drawn_out(half.time, whole.time));
  return {&algorithm, {}, time, wire, drawn_out(half.processor, whole.processor)};
}

// Of one dtype, so that the choice does not depend on which call of a class comes first.
Prediction Selector::simulate(const Algorithm& algorithm, const Problem& problem, std::int64_t bytes,
                              Picoseconds most) const {
  const int size = topology_.size;
  const auto like = [&](std::int64_t length) {
    Problem result = even_problem(problem.collective, length, problem.root, size);
    result.memory = problem.memory;
    return result;
  };
  const auto run = [&](const std::vector<Schedule>& schedules, const Fold& fold) -> Prediction {
    const Simulated result = Simulation(schedules, topology_, network_, fold, processor_).run(most);
    if (!result.ends) {
      return by_cost(algorithm, problem);
    }
    return {&algorithm, {}, result.time, result.wire, result.processor, false, result.cut_off};
  };
  Problem asked = like(bytes);
  const auto build = [&](int rank) {
    Topology of_rank = topology_;
    of_rank.rank = rank;
    return algorithm.build(asked, of_rank, Limits());
  };
  std::vector<Schedule> schedules;
  if (Fold fold; size > kLeastFolded && has_equal_hosts(topology_, fold)) {
    // As it is, or else of a length that all ranks can share equally, in whole cache lines.
    const std::int64_t unit = std::int64_t{64} * size;
    for (const std::int64_t length : {bytes, (bytes + unit - 1) / unit * unit}) {
      asked = like(length);
      fold.symmetry = symmetry_of(build, fold, schedules);
      if (fold.symmetry != Symmetry::kNone) {
        if (const Prediction folded = run(schedules, fold); !folded.formula) {
          return folded;
        }
      }
    }
    asked = like(bytes);
    schedules.clear();
  }
  std::int64_t steps = 0;
  for (int rank = 0; rank < size; ++rank) {
    schedules.push_back(build(rank));
    steps += static_cast<std::int64_t>(schedules.back().steps.size());
    if (size > kMostSimulated && steps > kMostSteps) {
      return by_cost(algorithm, problem);
    }
  }
  return run(schedules, {});
}

}  // namespace collectives
