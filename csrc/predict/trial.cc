#include "predict/trial.h"

#include <algorithm>

namespace collectives {
Trial::Trial(const Algorithm& algorithm, const Problem& problem, std::int64_t bytes, const Topology& topology,
             const Network& network, const ProcessorCosts& processor)
    : algorithm_(algorithm),
      problem_(problem),
      bytes_(bytes),
      topology_(topology),
      network_(network),
      processor_(processor) {}

std::optional<Prediction> Trial::run(Picoseconds most) const {
  const auto rehearse = [&](std::int64_t bytes) {
    return Rehearsal(algorithm_, problem_, bytes, topology_, network_, processor_);
  };
  Rehearsal longest = rehearse(std::min(bytes_, kMostSimulatedBytes));
  if (!longest.ready()) {
    return {};
  }
  // Each further byte takes what it takes the busiest port, thread or machine.
  const double more = further() / 2 * static_cast<double>(longest.least_for_bytes());
  const Picoseconds least = bounded(static_cast<double>(longest.least()) + more);
  const auto cut_off = [&](Picoseconds time) { return Prediction{&algorithm_, {}, time, 0, 0, false, true, least}; };
  if (least > most) {
    return cut_off(least);
  }
  // As long as nothing is known to be faster, there is nothing to be cut off.
  const Simulated whole = longest.run(most > kNever / 2 ? most : most - bounded(more));
  if (!whole.ends) {
    return {};
  }
  if (bytes_ <= kMostSimulatedBytes) {
    return Prediction{&algorithm_, {}, whole.time, whole.wire, whole.processor, false, whole.cut_off, least};
  }
  if (whole.cut_off) {
    return cut_off(most);
  }
  Rehearsal shorter = rehearse(kMostSimulatedBytes / 2);
  const Simulated half = shorter.ready() ? shorter.run(kNever) : Simulated{.ends = false};
  if (!half.ends) {
    return {};
  }
  // What takes longer at the beginning than later makes the line too flat.
  const Picoseconds time = std::max(least, drawn_out(half.time, whole.time));
  return Prediction{
      &algorithm_, {},    time, drawn_out(half.wire, whole.wire), drawn_out(half.processor, whole.processor),
      false,       false, least};
}

double Trial::further() const {
  return std::max(0.0, static_cast<double>(bytes_ - kMostSimulatedBytes) / (kMostSimulatedBytes / 2.0));
}

Picoseconds Trial::drawn_out(Picoseconds half, Picoseconds whole) const {
  return bounded(static_cast<double>(whole) + further() * static_cast<double>(std::max<Picoseconds>(0, whole - half)));
}

}  // namespace collectives
