// one_shot scatter: the root gives each rank its part.
//
//   mapped   through the root's bounce buffer, whose slots have one region for each reader.
//   message  tokens to the root, which then sends: no rank returns before all have entered. The root does not wait for
//            them with all of a long part, but only with its end.
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

// The end of a part, and the least part that has one.
constexpr std::int64_t kEnd = 4 << 10;
constexpr std::int64_t kLong = 16 << 10;

std::int64_t beginning_of(std::int64_t part) { return part < kLong ? 0 : part - kEnd; }

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  const Exchange exchange(problem, topology, limits);
  if (topology.all_mapped() && exchange.fits_slots()) {
    return exchange.through_slots();
  }
  const int me = topology.rank;
  ScheduleBuilder b;
  if (me != problem.root) {
    b.send_token(problem.root);
    if (const std::int64_t begin = beginning_of(exchange.part(problem.root, me)); begin > 0) {
      exchange.receive_stretch(b, problem.root, 0, begin);
      exchange.receive_stretch(b, problem.root, begin, kEnd);
    } else {
      exchange.receive_from(b, problem.root);
    }
    b.await();
    return b.build_messages();
  }
  for (int i = 1; i < topology.size; ++i) {
    const int to = (me + i) % topology.size;
    if (const std::int64_t begin = beginning_of(exchange.part(me, to)); begin > 0) {
      exchange.send_stretch(b, to, to, 0, begin);
    }
  }
  for (int i = 1; i < topology.size; ++i) {
    b.receive_token((me + i) % topology.size);
  }
  b.await();
  for (int i = 1; i < topology.size; ++i) {
    const int to = (me + i) % topology.size;
    if (const std::int64_t begin = beginning_of(exchange.part(me, to)); begin > 0) {
      exchange.send_stretch(b, to, to, begin, kEnd);
    } else {
      exchange.send_to(b, to);
    }
  }
  exchange.keep(b);
  return b.build_messages();
}

const RegisterAlgorithm registration({"one_shot", Collective::kScatter, "The root gives each rank its part.",
                                      "the linear scatter of MPI libraries", Determinism::kCanonical, unsupported, cost,
                                      build});

}  // namespace
}  // namespace collectives
