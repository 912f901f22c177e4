// hierarchical all-gather: around rings between hosts, and from each rank to those of its host.
//
// Where every host has at least c ranks, the first c of every host are carriers. The parts of a host's ranks are dealt
// out to its carriers, and travel around a ring of the carriers of the same place, one on each host: in step t of h-1 a
// carrier passes the parts that come from t hosts before on to the next, segment by segment, and gives them to the
// ranks of its host. So every part enters and leaves each of h hosts once at most, (h-1)/h S bytes, however many ranks
// a host has, and all ranks of equal hosts have equal work. The parts of its own host every rank gets from their
// owners.
//
// What other carriers of its host got in a step, a carrier takes in the next one. A part of no elements travels as a
// token, so that no rank returns before all have entered.
//
// Source: the two-level all-gather of MPI libraries (Traeff and Rougier 2014); the ring of Thakur et al. 2005.

#include <algorithm>
#include <functional>
#include <vector>

#include "schedule/exchange.h"
#include "schedule/placement.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& topology) { return needs_hosts(topology); }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const Placement placement(topology);
  const auto bytes = static_cast<double>(problem.bytes());
  const double h = placement.hosts();
  // The parts of the last step have no time of the ring in which they could be given away.
  const double last = bytes / h * (placement.most() > 1 ? 1 : 0);
  return model.mapped.latency_us + last / model.mapped.bytes_per_us + (h - 1) * model.message.latency_us +
         (h - 1) / h * bytes / model.message.bytes_per_us;
}

class Hierarchical {
 public:
  Hierarchical(const Problem& problem, const Topology& topology, const Limits& limits)
      : me_(topology.rank),
        exchange_(problem, topology, limits),
        placement_(topology),
        hosts_(placement_.hosts()),
        carriers_(placement_.fewest()) {
    std::int64_t longest = 0;
    for (int r = 0; r < topology.size; ++r) {
      longest = std::max(longest, part(r));
    }
    segment_ = part_segment(longest, problem.element(), limits);
  }

  Schedule build() {
    const bool carries = placement_.place() < carriers_;
    if (carries) {
      send_own(placement_.around(1));
    }
    others([&](int r) { send_own(r); });
    others([&](int r) { receive(r, r); });
    exchange_.keep(b_);
    if (carries) {
      carry();
    } else {
      take_steps_before(hosts_);
    }
    if (receiving_) {
      b_.await();
    }
    return b_.build_messages();
  }

 private:
  std::int64_t part(int rank) const { return exchange_.part(rank, me_); }
  Operand place_of(int rank, const Chunk& c) const {
    return output(exchange_.output_offset(rank) + c.offset, c.stride);
  }
  void others(const std::function<void(int)>& body) const {
    for (const int r : placement_.local()) {
      if (r != me_) {
        body(r);
      }
    }
  }
  // The ranks of the host that many before whose parts the carriers of a place carry.
  std::vector<int> carried(int steps, int place) const {
    const std::vector<int>& ranks = placement_.ranks((placement_.host() - steps + hosts_) % hosts_);
    std::vector<int> found;
    for (std::size_t i = static_cast<std::size_t>(place); i < ranks.size(); i += static_cast<std::size_t>(carriers_)) {
      found.push_back(ranks[i]);
    }
    return found;
  }

  void send_own(int to) {
    b_.for_chunks(part(me_), segment_, 0, [&](const Chunk& c) {
      b_.send(to, input(exchange_.input_offset(me_, me_) + c.offset, c.stride), c.bytes);
    });
  }
  void receive(int from, int owner) {
    b_.for_chunks(part(owner), segment_, 0, [&](const Chunk& c) { b_.receive(from, place_of(owner, c), c.bytes); });
    receiving_ = true;
  }
  void settle() {
    b_.await();
    receiving_ = false;
  }

  // Receives from the other carriers of this host what they got in the steps up to that one.
  void take_steps_before(int end) {
    for (; taken_ < end; ++taken_) {
      for (int place = 0; place < carriers_; ++place) {
        for (const int owner : carried(taken_, place)) {
          if (place != placement_.place()) {
            receive(placement_.local()[static_cast<std::size_t>(place)], owner);
          }
        }
      }
    }
  }

  void carry() {
    const std::vector<int> own = carried(0, placement_.place());
    if (own.size() > 1) {
      settle();
    }
    for (std::size_t i = 1; i < own.size(); ++i) {
      b_.for_chunks(part(own[i]), segment_, 0,
                    [&](const Chunk& c) { b_.send(placement_.around(1), place_of(own[i], c), c.bytes); });
    }
    for (int step = 1; step < hosts_; ++step) {
      const bool last = step == hosts_ - 1;
      for (const int owner : carried(step, placement_.place())) {
        b_.for_chunks(part(owner), segment_, 1, [&](const Chunk& c) {
          b_.receive(placement_.around(-1), place_of(owner, c), c.bytes);
          receiving_ = true;
          take_steps_before(step);
          if (!last || placement_.local().size() > 1) {
            settle();
          }
          if (!last) {
            b_.send(placement_.around(1), place_of(owner, c), c.bytes);
          }
          others([&](int r) { b_.send(r, place_of(owner, c), c.bytes); });
        });
      }
    }
    take_steps_before(hosts_);
  }

  int me_;
  Exchange exchange_;
  Placement placement_;
  int hosts_;
  int carriers_;
  std::int64_t segment_ = 0;
  ScheduleBuilder b_;
  int taken_ = 1;           // the first step of the ring of which the other carriers' parts were not taken
  bool receiving_ = false;  // there are receives that were not awaited
};

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  return Hierarchical(problem, topology, limits).build();
}

const RegisterAlgorithm registration({"hierarchical", Collective::kAllGather,
                                      "Around rings between hosts, and within hosts, every rank its share.",
                                      "Traeff and Rougier 2014; Thakur, Rabenseifner and Gropp 2005",
                                      Determinism::kCanonical, unsupported, cost, build});

}  // namespace
}  // namespace collectives
