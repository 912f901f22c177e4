#include "predict/fold.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace collectives {
namespace {

bool is_message(StepKind kind) {
  return kind == StepKind::kSend || kind == StepKind::kReceive || kind == StepKind::kReceiveReduce;
}

// Whether a rank of host `by` does what the rank of the same place on the first host does.
bool alike(const Schedule& first, const Schedule& other, const Fold& fold, int by) {
  return std::equal(first.steps.begin(), first.steps.end(), other.steps.begin(), other.steps.end(),
                    [&](const Step& a, const Step& b) {
                      return a.kind == b.kind && a.length == b.length && a.waits.count == b.waits.count &&
                             a.signals.count == b.signals.count && a.sources.count == b.sources.count &&
                             a.destinations.count == b.destinations.count &&
                             (!is_message(a.kind) || fold.same(a.peer, b.peer, by));
                    });
}

}  // namespace

int Fold::sender_of(int from, int to) const {
  const int distance = to / local;
  const int host = symmetry == Symmetry::kShift ? (hosts - distance) % hosts : distance;
  return host * local + from;
}

bool Fold::same(int from, int to, int by) const {
  const int host = symmetry == Symmetry::kShift ? (from / local + by) % hosts : (from / local) ^ by;
  return from % local == to % local && to / local == host;
}

bool has_equal_hosts(const Topology& topology, Fold& fold) {
  fold.local = static_cast<int>(std::count(topology.host.begin(), topology.host.end(), topology.host[0]));
  fold.hosts = topology.size / fold.local;
  fold.symmetry = Symmetry::kNone;
  for (int r = 0; r < topology.size; ++r) {
    const auto at = static_cast<std::size_t>(r);
    if (topology.host[at] != r / fold.local || (!topology.machine.empty() && topology.machine[at] != r / fold.local)) {
      return false;
    }
  }
  const auto& cores = topology.cores;
  return fold.hosts > 1 && fold.hosts * fold.local == topology.size &&
         std::all_of(cores.begin(), cores.end(), [&](int count) { return count == cores[0]; });
}

Symmetry symmetry_of(const std::function<Schedule(int rank)>& build, const Fold& hosts, std::vector<Schedule>& first) {
  first.clear();
  for (int r = 0; r < hosts.local; ++r) {
    first.push_back(build(r));
  }
  Fold fold = hosts;
  for (const Symmetry symmetry : {Symmetry::kShift, Symmetry::kExclusiveOr}) {
    if (symmetry == Symmetry::kExclusiveOr && !std::has_single_bit(static_cast<unsigned>(fold.hosts))) {
      continue;
    }
    fold.symmetry = symmetry;
    bool holds = true;
    for (const int by : {fold.hosts - 1, 1}) {
      for (int r = 0; holds && r < fold.local; ++r) {
        holds = alike(first[static_cast<std::size_t>(r)], build(by * fold.local + r), fold, by);
      }
    }
    if (holds) {
      return symmetry;
    }
  }
  return Symmetry::kNone;
}

}  // namespace collectives
