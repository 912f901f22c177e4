// one_shot all-gather: every rank gives its part to every other.
//
//   mapped   each rank writes its part into its own bounce buffer, chunk by chunk; all others read it there.
//   message  each rank sends its part to each other, long ones a few at a time: each part leaves its host n-1 times.
//
// Source: the linear all-gather of MPI libraries.

#include "schedule/exchange.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const auto bytes = static_cast<double>(problem.bytes());
  const LinkCost link = model.slowest(topology);
  const double share = static_cast<double>(topology.size - 1) / topology.size;
  if (topology.all_mapped()) {
    // Of two ranks the other one is the only reader of a bounce buffer, and acquires the ownership of its lines. Where
    // ranks share cores, what one reader has fetched is in the cache for the others, too.
    const bool shared = topology.size > 2 && !topology.crowded();
    const double read_bytes_per_us = shared ? model.shared_bytes_per_us : link.bytes_per_us;
    return link.latency_us + bytes / topology.size / model.copy_bytes_per_us + share * bytes / read_bytes_per_us;
  }
  return link.latency_us * (1 + 0.3 * (topology.size - 2)) + share * bytes / link.bytes_per_us;
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  const Exchange exchange(problem, topology, limits);
  if (topology.all_mapped() && exchange.fits_slots()) {
    return exchange.through_slots();
  }
  return exchange.by_messages();
}

const RegisterAlgorithm registration({"one_shot", Collective::kAllGather, "Everyone gives its part to everyone.",
                                      "the linear all-gather of MPI libraries", Determinism::kCanonical, unsupported,
                                      cost, build});

}  // namespace
}  // namespace collectives
