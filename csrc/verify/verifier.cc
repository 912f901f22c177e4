#include "verify/verifier.h"

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
    verification::Machine(schedules, problem, topology, options, verdict).run();
    verdict.ok = true;
  } catch (const verification::Violation& violation) {
    verdict.problem = violation.text;
  }
  return verdict;
}

}  // namespace collectives
