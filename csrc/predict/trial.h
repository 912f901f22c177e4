// What is expected of one algorithm for a call between hosts.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/network.h"
#include "core/topology.h"
#include "predict/machine.h"
#include "predict/rehearsal.h"
#include "schedule/algorithm.h"

namespace collectives {

struct Prediction {
  const Algorithm* algorithm = nullptr;
  std::string_view unsupported;  // why it cannot be used here; no times then
  Picoseconds time = 0;
  Picoseconds wire = 0;       // that the busiest port of a host carries bytes; 0 where a formula was asked
  Picoseconds processor = 0;  // that the thread of the slowest rank works; as above
  bool formula = false;       // it was not simulated
  bool cut_off = false;       // it takes longer: the times are those up to where that did not matter any more
  Picoseconds least = 0;      // what it takes at least, by what can be counted
};

// Long calls are not run in virtual time: from kMostSimulatedBytes on, time grows by as much for each further byte, so
// it is drawn out as a line through this length and half of it.
class Trial {
 public:
  static constexpr std::int64_t kMostSimulatedBytes = 8 << 20;

  // All that is referred to outlives this.
  Trial(const Algorithm& algorithm, const Problem& problem, std::int64_t bytes, const Topology& topology,
        const Network& network, const ProcessorCosts& processor);

  // Nothing where it cannot be simulated. most: later than that does not matter; the time may then be cut off.
  std::optional<Prediction> run(Picoseconds most) const;

 private:
  Picoseconds drawn_out(Picoseconds half, Picoseconds whole) const;
  // How far the length is beyond kMostSimulatedBytes, in halves of that.
  double further() const;

  const Algorithm& algorithm_;
  const Problem& problem_;
  const std::int64_t bytes_;
  const Topology& topology_;
  const Network& network_;
  const ProcessorCosts& processor_;
};

}  // namespace collectives
