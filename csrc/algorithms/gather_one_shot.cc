// one_shot gather: every rank gives its part to the root.
//
//   mapped   through the bounce buffers, chunk by chunk.
//   message  one message to the root, which answers with a token when it has all: no rank returns before all have
//            entered.
//
// Source: the linear gather of MPI libraries.

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
    exchange.send_to(b, problem.root);
    b.receive_token(problem.root).await();
    return b.build_messages();
  }
  for (int i = 1; i < topology.size; ++i) {
    exchange.receive_from(b, (me + i) % topology.size);
  }
  exchange.keep(b);
  b.await();
  for (int i = 1; i < topology.size; ++i) {
    b.send_token((me + i) % topology.size);
  }
  return b.build_messages();
}

const RegisterAlgorithm registration({"one_shot", Collective::kGather, "Everyone gives its part to the root.",
                                      "the linear gather of MPI libraries", Determinism::kCanonical, unsupported, cost,
                                      build});

}  // namespace
}  // namespace collectives
