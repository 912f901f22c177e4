// one_shot barrier: every rank signals every other.
//
// Source: the linear barrier of MPI libraries; over mapped memory it is the exchange of header lines alone.

#include <vector>

#include "schedule/algorithm.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& /*topology*/) { return {}; }

double cost(const Problem& /*problem*/, const Topology& topology, const CostModel& model) {
  return model.slowest(topology).latency_us * (1 + 0.3 * (topology.size - 2));
}

Schedule build(const Problem& /*problem*/, const Topology& topology, const Limits& /*limits*/) {
  const int me = topology.rank;
  const bool mapped = topology.all_mapped();
  ScheduleBuilder b;
  std::vector<FlagRef> headers;
  for (int i = 1; i < topology.size; ++i) {
    const int r = (me + i) % topology.size;
    if (mapped) {
      headers.push_back({kHeaderFlag, static_cast<std::uint16_t>(r), 0});
    } else {
      b.send_token(r);
    }
  }
  if (mapped) {
    b.signal(me, kHeaderFlag, 0).wait(headers);
    return b.build();
  }
  for (int r = 0; r < topology.size; ++r) {
    if (r != me) {
      b.receive_token(r);
    }
  }
  b.await();
  return b.build();
}

const RegisterAlgorithm registration({"one_shot", Collective::kBarrier, "Everyone tells everyone.",
                                      "the linear barrier of MPI libraries", Determinism::kCanonical, unsupported, cost,
                                      build});

}  // namespace
}  // namespace collectives
