#include "predict/trial.h"

#include <algorithm>

namespace collectives {
namespace {

// Of what a byte takes on average up to kMostSimulatedBytes, each further one takes this much at least: what is not cut
// off by that is run to its end.
constexpr double kLeastSlope = 0.75;

}  // namespace

Trial::Trial(const Algorithm& algorithm, const Problem& problem, std::int64_t bytes, const Topology& topology,
             const Network& network, const ProcessorCosts& processor)
    : algorithm_(&algorithm),
      bytes_(bytes),
      whole_(algorithm, problem, std::min(bytes, kMostSimulatedBytes), topology, network, processor) {
  if (bytes > kMostSimulatedBytes) {
    half_.emplace(algorithm, problem, kMostSimulatedBytes / 2, topology, network, processor);
  }
}

// Of two lines that are drawn out the lower one may end up higher, by little.
Picoseconds Trial::least() const {
  const Picoseconds counted = whole_.least();
  return half_ ? drawn_out(half_->least(), counted) / 32 * 31 : counted;
}

std::optional<Prediction> Trial::run(Picoseconds most) {
  if (!whole_.ready() || (half_ && !half_->ready())) {  // it may have too many steps where half of it has not
    return {};
  }
  const Picoseconds counted = least();
  if (counted > most) {
    return cut_off(counted);
  }
  const double longer = 1 + kLeastSlope / 2 * further();
  const Simulated whole = whole_.run(half_ ? static_cast<Picoseconds>(static_cast<double>(most) / longer) : most);
  if (!whole.ends) {
    return {};
  }
  if (!half_) {
    return Prediction{algorithm_, {}, whole.time, whole.wire, whole.processor, false, whole.cut_off, counted};
  }
  if (whole.cut_off) {
    return cut_off(most);
  }
  const Simulated half = half_->run(kNever);
  if (!half.ends) {
    return {};
  }
  const Picoseconds wire = drawn_out(half.wire, whole.wire);
  const Picoseconds burst = std::max<Picoseconds>(0, whole.wire - whole.time);  // what passed ahead of the port's rate
  const Picoseconds time = std::max(wire - burst, drawn_out(half.time, whole.time));
  return Prediction{algorithm_, {}, time, wire, drawn_out(half.processor, whole.processor), false, false, counted};
}

Prediction Trial::cut_off(Picoseconds time) const { return {algorithm_, {}, time, 0, 0, false, true, least()}; }

double Trial::further() const {
  return half_ ? static_cast<double>(bytes_ - kMostSimulatedBytes) / (kMostSimulatedBytes / 2.0) : 0;
}

Picoseconds Trial::drawn_out(Picoseconds half, Picoseconds whole) const {
  return whole + static_cast<Picoseconds>(further() * static_cast<double>(std::max<Picoseconds>(0, whole - half)));
}

}  // namespace collectives
