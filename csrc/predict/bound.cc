#include "predict/bound.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "predict/cores.h"

namespace collectives {
namespace {

struct Passed {
  std::int64_t out = 0;  // bytes
  std::int64_t in = 0;
};

class Count {
 public:
  Count(const Topology& topology, const Fold& fold, const ProcessorCosts& costs)
      : topology_(topology), fold_(fold), costs_(costs), ports_(static_cast<std::size_t>(hosts_of(topology))) {}

  // The time that the thread of a rank works.
  Picoseconds add(int rank, const Schedule& schedule) {
    Picoseconds works = 0;
    std::size_t end = schedule.steps.size();
    std::int64_t times = 1;
    for (std::size_t i = 0; i < end; ++i) {
      const Step& step = schedule.steps[i];
      if (step.kind == StepKind::kLoop) {
        times = step.length;
      } else if (step.kind == StepKind::kEndLoop) {
        times = 1;
      } else if (step.kind == StepKind::kChoose) {
        end = static_cast<std::size_t>(step.length);  // as in a simulation
      } else {
        works += times * work(rank, step, times);
      }
    }
    return works;
  }

  std::int64_t busiest() const {
    std::int64_t most = 0;
    for (const Passed& port : ports_) {
      most = std::max({most, port.out, port.in});
    }
    return most;
  }

 private:
  Picoseconds work(int rank, const Step& step, std::int64_t times) {
    const bool mapped = topology_.mapped(rank, step.peer);
    switch (step.kind) {
      case StepKind::kCopy:
      case StepKind::kRead:
        return costs_.step + step.length * costs_.copy_byte * step.destinations.count;
      case StepKind::kReduce:
        return costs_.step + step.length * costs_.reduce_byte * step.sources.count;
      case StepKind::kSend:
        if (!mapped) {
          const bool folded = fold_.symmetry != Symmetry::kNone;
          const std::int64_t bytes = times * frame_bytes(step.length);
          ports_[folded ? 0 : host(rank)].out += bytes;
          ports_[folded ? 0 : host(step.peer)].in += bytes;
        }
        return mapped ? costs_.mapped_message + step.length * costs_.mapped_byte
                      : costs_.send_message + step.length * costs_.send_byte;
      case StepKind::kReceive:
      case StepKind::kReceiveReduce:
        return mapped ? costs_.mapped_message + step.length * costs_.mapped_byte
                      : costs_.receive_message + step.length * costs_.receive_byte;
      default:
        return 0;
    }
  }

  std::size_t host(int rank) const { return static_cast<std::size_t>(topology_.host[static_cast<std::size_t>(rank)]); }

  const Topology& topology_;
  const Fold& fold_;
  const ProcessorCosts& costs_;
  std::vector<Passed> ports_;
};

}  // namespace

Picoseconds least_time(const std::vector<Schedule>& schedules, const Topology& topology, const Network& network,
                       const Fold& fold, const ProcessorCosts& costs) {
  const Cores cores(topology);
  Count count(topology, fold, costs);
  std::vector<Picoseconds> machines(cores.machines());
  Picoseconds least = 0;
  for (std::size_t r = 0; r < schedules.size(); ++r) {
    const std::size_t machine = cores.machine_of(static_cast<int>(r));
    const Picoseconds works = cores.slowed(machine, count.add(static_cast<int>(r), schedules[r]));
    least = std::max(least, works);
    machines[machine] += works;
  }
  for (std::size_t m = 0; m < machines.size(); ++m) {
    least = std::max(least, machines[m] / cores.count(m));
  }
  const auto passed = static_cast<double>(count.busiest() - network.burst_bytes);
  return std::max(least, bounded(passed * static_cast<double>(wire_byte(network))));
}

}  // namespace collectives
