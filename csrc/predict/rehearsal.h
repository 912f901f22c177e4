// An algorithm on trial: the schedules that it makes for calls of one length, and how long they take in virtual time.
#pragma once

#include <cstdint>
#include <vector>

#include "core/network.h"
#include "core/topology.h"
#include "predict/fold.h"
#include "predict/machine.h"
#include "predict/simulation.h"
#include "schedule/algorithm.h"

namespace collectives {

class Rehearsal {
 public:
  static constexpr int kMostSimulated = 64;           // ranks of which all are simulated, whatever their steps
  static constexpr std::int64_t kMostSteps = 60'000;  // of all ranks of a larger job together

  // Makes the schedules for calls like `problem` of so many bytes: of one host where that can stand for all, else of
  // all ranks. Topology, network and processor outlive this.
  Rehearsal(const Algorithm& algorithm, const Problem& problem, std::int64_t bytes, const Topology& topology,
            const Network& network, const ProcessorCosts& processor);

  // Whether it can be run: the schedules have not too many steps.
  bool ready() const { return !schedules_.empty(); }

  // run() does not find less.
  Picoseconds least() const { return least_; }
  // What of that is for bytes, and not for messages and steps.
  Picoseconds least_for_bytes() const { return least_for_bytes_; }

  // Runs until the slowest rank is done, or it is later than `most`.
  Simulated run(Picoseconds most);

 private:
  void use(std::int64_t bytes);
  Schedule build(int rank) const;
  bool fold();
  void make_all();
  Simulated simulate(Picoseconds most) const;

  const Algorithm* algorithm_;
  const Topology* topology_;
  const Network* network_;
  const ProcessorCosts* processor_;
  Problem problem_;
  std::int64_t bytes_;
  Fold fold_;
  std::vector<Schedule> schedules_;
  Picoseconds least_ = 0;
  Picoseconds least_for_bytes_ = 0;
};

// A call of so many bytes with parts of equal length. bytes: what a rank gives or gets, whichever is more.
Problem even_problem(Collective collective, std::int64_t bytes, int root, int size);

}  // namespace collectives
