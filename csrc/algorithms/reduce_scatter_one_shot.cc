// one_shot reduce-scatter: every rank gives each other its share of that rank's part, and each rank reduces its own
// part in rank order.
//
//   mapped   through the bounce buffers; a share is reduced where it lies.
//   message  shares are sent to their owners, who reduce them from scratch memory, segment by segment.
//
// Source: reduce-scatter by direct exchange (Rabenseifner 2004): the first half of the two_shot all-reduce.

#include "schedule/exchange.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const LinkCost link = model.slowest(topology);
  const double share = static_cast<double>(topology.size - 1) / topology.size;
  return link.latency_us * (1 + 0.3 * (topology.size - 2)) +
         share * static_cast<double>(problem.bytes()) / link.bytes_per_us;
}

// The shares of all ranks, in rank order, and their sum into the output.
template <typename Place>
void reduce_all(ScheduleBuilder& b, const Exchange& exchange, const Topology& topology, const Chunk& c,
                std::int64_t bytes, const Place& place) {
  const int me = topology.rank;
  std::vector<Operand> sources;
  for (int r = 0; r < topology.size; ++r) {
    sources.push_back(r == me ? input(exchange.input_offset(me, me) + c.offset, c.stride) : place(r));
  }
  b.reduce(sources, {output(c.offset, c.stride)}, bytes, true);
}

Schedule by_messages(const Exchange& exchange, const Topology& topology) {
  const int me = topology.rank;
  const int n = topology.size;
  ScheduleBuilder b;
  for (int i = 1; i < n; ++i) {
    exchange.send_to(b, (me + i) % n);
  }
  const std::int64_t mine = exchange.part(me, me);
  const std::int64_t slot = std::min(exchange.segment(), mine);
  const std::int64_t received = b.scratch(slot * n);
  b.for_chunks(mine, exchange.segment(), 0, [&](const Chunk& c) {
    for (int i = 1; i < n; ++i) {
      const int from = (me + i) % n;
      if (mine > 0) {
        b.receive(from, scratch_at(received + from * slot), c.bytes);
      } else {
        b.receive_token(from);
      }
    }
    b.await();
    if (mine > 0) {
      reduce_all(b, exchange, topology, c, c.bytes, [&](int r) { return scratch_at(received + r * slot); });
    }
  });
  return b.build_messages();
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  const Exchange exchange(problem, topology, limits);
  if (!topology.all_mapped() || !exchange.fits_slots()) {
    return by_messages(exchange, topology);
  }
  const int other = topology.rank == 0 ? 1 : 0;
  return exchange.through_slots([&](ScheduleBuilder& b, const Chunk& c) {
    reduce_all(b, exchange, topology, c, exchange.piece(other, c), [&](int r) { return exchange.place(r, c); });
  });
}

const RegisterAlgorithm registration({"one_shot", Collective::kReduceScatter,
                                      "Everyone gives each rank its share, and each rank reduces its own part.",
                                      "Rabenseifner 2004 (direct exchange)", Determinism::kCanonical, unsupported, cost,
                                      build});

}  // namespace
}  // namespace collectives
