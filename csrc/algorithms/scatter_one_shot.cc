// one_shot scatter: the root gives each rank its part.
//
//   mapped   through the root's bounce buffer, whose slots have one region for each reader.
//   message  tokens to the root, which then sends: no rank returns before all have entered.
//
// Source: the linear scatter of MPI libraries.

#include "schedule/exchange.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const LinkCost link = model.slowest(topology);
  return 2 * link.latency_us + static_cast<double>(problem.bytes()) / link.bytes_per_us;
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  const Exchange exchange(problem, topology, limits);
  if (topology.all_mapped() && exchange.fits_slots()) {
    return exchange.through_slots();
  }
  const int me = topology.rank;
  ScheduleBuilder b;
  if (me != problem.root) {
    b.send_token(problem.root);
    exchange.receive_from(b, problem.root);
    b.await();
    return b.build_messages();
  }
  for (int i = 1; i < topology.size; ++i) {
    b.receive_token((me + i) % topology.size);
  }
  b.await();
  for (int i = 1; i < topology.size; ++i) {
    exchange.send_to(b, (me + i) % topology.size);
  }
  exchange.keep(b);
  return b.build_messages();
}

const RegisterAlgorithm registration({"one_shot", Collective::kScatter, "The root gives each rank its part.",
                                      "the linear scatter of MPI libraries", Determinism::kCanonical, unsupported, cost,
                                      build});

}  // namespace
}  // namespace collectives
