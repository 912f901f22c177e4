// Which algorithm a call uses where the caller leaves that open, and what is expected of each.
//
// Ranks of one host: caches decide, so the formulas of the algorithms do, with measured constants (Algorithm::cost).
// Ranks of several hosts: the schedules of all ranks are run in virtual time (Simulation), for each algorithm that
// applies, and the fastest is taken. That is done once for each class of sizes. In a large job of equal hosts one host
// stands for all where the algorithm is symmetric (fold.h), and what has few steps is simulated whole. Formulas are
// asked for the rest, and also for two ranks, which have nobody to share a port with and send equally much by most
// algorithms.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "core/network.h"
#include "core/topology.h"
#include "predict/machine.h"
#include "predict/trial.h"
#include "schedule/algorithm.h"

namespace collectives {

// Calls of a collective whose rank gives or gets so many bytes, from `low` on and below `high`, take this algorithm
// where they leave that open and it can be used.
// ranks: only in groups of so many ranks, all of one host; 0: in all. of_profile: a profile says it, see profile.h.
struct Override {
  const Algorithm* algorithm = nullptr;
  std::int64_t low = 0;
  std::int64_t high = 0;
  int ranks = 0;
  bool of_profile = false;
};

class Selector {
 public:
  static constexpr int kMuchLonger = 10;

  // overrides: the first that fits a call counts. processor: of all machines.
  Selector(const Topology& topology, const CostModel& costs, const Network& network,
           const std::vector<Override>& overrides, const ProcessorCosts& processor = {})
      : topology_(topology), costs_(costs), network_(network), processor_(processor), overrides_(overrides) {}

  // The algorithm for a call. deterministic: only those whose order of operands does not depend on the size.
  const Algorithm& choose(const Problem& problem, bool deterministic);

  // What was asked for beforehand, nullptr where there is nothing that can be used.
  const Override* overridden(const Problem& problem, bool deterministic) const;

  // All algorithms of the collective, fastest first, those that cannot be used last. What takes kMuchLonger times as
  // long as the fastest is cut off.
  std::vector<Prediction> predictions(const Problem& problem) const;

  // Whether schedules are simulated here, rather than formulas asked.
  bool simulates() const { return !topology_.all_mapped() && topology_.size > 2; }

 private:
  // Calls with the same key get the same algorithm.
  struct Key {
    Collective collective;
    MemoryKind memory;
    bool deterministic;
    int root;
    std::int64_t bytes;
    auto operator<=>(const Key&) const = default;
  };

  // Those that can be used. What is likely to be fast comes first: then most others need not be run to their end.
  std::vector<const Algorithm*> by_formula(const Problem& problem, bool deterministic) const;
  Prediction by_formula(const Algorithm& algorithm, const Problem& problem) const;
  Trial trial(const Algorithm& algorithm, const Problem& problem) const;
  const Algorithm* fastest(const std::vector<const Algorithm*>& candidates, const Problem& problem) const;

  const Topology& topology_;
  const CostModel costs_;
  const Network network_;
  const ProcessorCosts processor_;
  const std::vector<Override>& overrides_;
  std::map<Key, const Algorithm*> chosen_;
};

}  // namespace collectives
