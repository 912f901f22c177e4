// ring all-gather: parts travel around a ring.
//
// In step t of n-1, rank r passes part r-t on to rank r+1, segment by segment, as soon as it has it. Every part crosses
// every link but one once, so each link carries what an optimal all-gather must, whatever n. A part of no elements
// travels as a token, so that no rank returns before all have entered.
//
// Source: the ring all-gather of Thakur, Rabenseifner and Gropp 2005.

#include "schedule/exchange.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const LinkCost link = topology.all_mapped() ? model.mapped : model.message;
  const double copies = topology.all_mapped() ? 2.0 : 1.0;
  const double share = static_cast<double>(topology.size - 1) / topology.size;
  return (topology.size - 1) * link.latency_us * copies +
         copies * share * static_cast<double>(problem.bytes()) / link.bytes_per_us;
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  const Exchange exchange(problem, topology, limits);
  const int n = topology.size;
  const int me = topology.rank;
  const int next = (me + 1) % n;
  const int previous = (me + n - 1) % n;
  ScheduleBuilder b;
  exchange.send_to(b, next);
  for (int t = 1; t < n; ++t) {
    const int owner = (me - t + n) % n;
    const std::int64_t bytes = exchange.part(owner, me);
    const bool last = t == n - 1;
    if (bytes == 0) {
      b.receive_token(previous);
      if (!last) {
        b.await().send_token(next);
      }
      continue;
    }
    b.for_chunks(bytes, exchange.segment(), 0, [&](const Chunk& c) {
      const Operand place = output(exchange.output_offset(owner) + c.offset, c.stride);
      b.receive(previous, place, c.bytes);
      if (!last) {
        b.await().send(next, place, c.bytes);
      }
    });
  }
  exchange.keep(b);
  b.await();
  return b.build_messages();
}

const RegisterAlgorithm registration({"ring", Collective::kAllGather, "Parts travel around a ring.",
                                      "Thakur, Rabenseifner and Gropp 2005", Determinism::kCanonical, unsupported, cost,
                                      build});

}  // namespace
}  // namespace collectives
