// one_shot all-to-all: every rank gives each other rank its part at once.
//
//   mapped   the slots of a bounce buffer have one region for each reader.
//   message  sends and receives are posted at once, beginning with the next rank, so that not all send to the same
//            rank first; long parts go a few at a time.
//
// Source: the linear (posted) all-to-all of MPI libraries (Thakur, Rabenseifner and Gropp 2005).

#include "schedule/exchange.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const double bytes = static_cast<double>(problem.bytes()) / topology.size;
  const LinkCost link = model.slowest(topology);
  return link.latency_us * (1 + 0.3 * (topology.size - 2)) + bytes / link.bytes_per_us;
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  const Exchange exchange(problem, topology, limits);
  if (topology.all_mapped() && exchange.fits_slots()) {
    return exchange.through_slots();
  }
  return exchange.by_messages();
}

const RegisterAlgorithm registration({"one_shot", Collective::kAllToAll, "Everyone gives each other its part at once.",
                                      "Thakur, Rabenseifner and Gropp 2005", Determinism::kCanonical, unsupported, cost,
                                      build});

}  // namespace
}  // namespace collectives
