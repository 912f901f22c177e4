// ring reduce-scatter: partial sums travel around a ring.
//
// The parts are cut into segments; segment by segment, in step t of n-1, rank r sends what it has of part r-t-1 to rank
// r+1 and adds its own share to what comes of part r-t-2 from rank r-1. After the last step it holds the sum for part
// r. (n-1)/n S bytes over each link: optimal, whatever n. Partial sums live in n-2 slots of scratch memory, which are
// used again for the next segment when all that was sent from them has left.
//
// Parts of no elements travel as tokens, so that no rank returns before all have entered.
//
// Source: the first half of the ring all-reduce of Patarasuk and Yuan 2009.

#include <algorithm>
#include <limits>

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
  std::int64_t longest = 0;
  for (int r = 0; r < n; ++r) {
    longest = std::max(longest, exchange.part(me, r));
  }
  const std::int64_t slot = std::min(longest, exchange.segment());
  ScheduleBuilder b;
  const std::int64_t sums = b.scratch(slot * (n - 2));
  const auto segment = [&](const Chunk& c) {
    const auto piece = [&](int owner) {
      return std::clamp<std::int64_t>(exchange.part(me, owner) - c.offset, 0, exchange.segment());
    };
    const auto share = [&](int owner) { return input(exchange.input_offset(me, owner) + c.offset, c.stride); };
    const auto send = [&](int owner, Operand from) {
      if (piece(owner) > 0) {
        b.send(next, from, piece(owner));
      } else if (c.index == 0) {
        b.send_token(next);
      }
    };
    if (c.index > 0 && n > 2) {
      b.flush();
    }
    send(previous, share(previous));
    for (int t = 0; t < n - 1; ++t) {
      const int owner = (me - t - 2 + 2 * n) % n;
      const bool last = t == n - 2;
      const Operand sum = last ? output(c.offset, c.stride) : scratch_at(sums + t * slot);
      if (piece(owner) > 0) {
        b.receive_reduce(previous, share(owner), sum, piece(owner), last);
      } else if (c.index == 0) {
        b.receive_token(previous);
      }
      if (!last) {
        b.await();
        send(owner, sum);
      }
    }
  };
  // Parts of different lengths end in different segments, so there is nothing to repeat.
  b.for_chunks(longest, exchange.segment(), problem.even() ? 1 : std::numeric_limits<int>::max(), segment);
  b.await();
  return b.build_messages();
}

const RegisterAlgorithm registration({"ring", Collective::kReduceScatter, "Partial sums travel around a ring.",
                                      "Patarasuk and Yuan 2009", Determinism::kFixed, unsupported, cost, build});

}  // namespace
}  // namespace collectives
