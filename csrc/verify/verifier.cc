#include "verify/verifier.h"

#include <algorithm>

#include "verify/machine.h"
#include "verify/structure.h"

namespace collectives {

Verdict verify(const std::vector<Schedule>& schedules, const Problem& problem, const Topology& topology,
               const VerifyOptions& options) {
  Verdict verdict;
  try {
    Topology placement = topology;
    for (int r = 0; r < topology.size; ++r) {
      placement.rank = r;
      verification::check_structure(schedules[static_cast<std::size_t>(r)], problem, placement, options.limits);
    }
    verification::check_agreement(schedules, topology);
    const bool choose = std::any_of(schedules.begin(), schedules.end(), [](const Schedule& s) { return s.chooses; });
    if (choose) {
      Verdict of_reading;  // what is counted is the other way
      verification::Machine(schedules, problem, topology, options, true, of_reading).run();
    }
    verification::Machine(schedules, problem, topology, options, false, verdict).run();
    verdict.ok = true;
  } catch (const verification::Violation& violation) {
    verdict.problem = violation.text;
  }
  return verdict;
}

}  // namespace collectives
