// halving_doubling all-reduce: hosts exchange ever smaller parts of their sums, then ever greater parts of the result.
//
// Where every host has at least c ranks, the buffer is split into c shares, and the first c ranks of every host carry
// one each: a carrier reduces its share over its host, and at the end gives the result to the ranks of its host. Of h
// hosts the first 2^k take part, k as great as can be; each one behind them sends its sum to the one 2^k before, and
// gets the result. In k rounds the carriers of hosts that differ in one bit, the highest first, exchange halves of what
// they are left with, and each adds what it gets to its own half, until it has one part of 2^k, complete. In k more
// rounds they exchange all that they have of the result. So 2 log2(h) messages come one after the other, and 2 (h-1)/h
// S bytes leave each host: the choice for buffers of middle length.
//
// Source: Rabenseifner's algorithm (Thakur, Rabenseifner and Gropp 2005).

#include <algorithm>
#include <bit>
#include <vector>

#include "schedule/placement.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& topology) { return needs_hosts(topology); }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const Placement placement(topology);
  const auto hosts = static_cast<unsigned>(placement.hosts());
  const auto bytes = static_cast<double>(problem.bytes());
  const double h = std::bit_floor(hosts);
  // A number of hosts that is no power of two takes a message of all before the rounds and one behind them.
  const int more = std::has_single_bit(hosts) ? 0 : 2;
  return 2 * model.mapped.latency_us + 2.0 * placement.most() * bytes / placement.fewest() / model.mapped.bytes_per_us +
         (2 * (std::bit_width(hosts) - 1) + more) * model.message.latency_us +
         (2 * (h - 1) / h + more) * bytes / model.message.bytes_per_us;
}

class HalvingDoubling {
 public:
  HalvingDoubling(const Problem& problem, const Topology& topology)
      : bytes_(problem.bytes()),
        element_(problem.element()),
        me_(topology.rank),
        placement_(topology),
        carriers_(placement_.fewest()) {}

  Schedule build() {
    for (int place = 0; place < carriers_; ++place) {
      if (local(place) != me_) {
        b_.send(local(place), input(share(place).offset), share(place).bytes);
      }
    }
    if (placement_.place() < carriers_) {
      carry(share(placement_.place()));
    }
    bool receives = false;
    for (int place = 0; place < carriers_; ++place) {
      if (local(place) != me_) {
        b_.receive(local(place), output(share(place).offset), share(place).bytes);
        receives = true;
      }
    }
    if (receives) {
      b_.await();
    }
    return b_.build_messages();
  }

 private:
  Part share(int place) const { return part_of(bytes_, element_, carriers_, place); }
  int local(int place) const { return placement_.local()[static_cast<std::size_t>(place)]; }
  int carrier_on(int host) const { return placement_.ranks(host)[static_cast<std::size_t>(placement_.place())]; }

  // Sums up what the others have of the share: the ranks of this host, and the carrier of a host that takes no part.
  // The sum is at sum_ plus the offset, where that is not the input.
  void collect(const Part& all, const std::vector<int>& below) {
    std::vector<Operand> sources{input(all.offset)};
    for (const int r : below) {
      sources.push_back(scratch_at(b_.scratch(all.bytes)));
      b_.receive(r, sources.back(), all.bytes);
    }
    if (!below.empty()) {
      b_.await();
      if (all.bytes > 0) {
        b_.reduce(sources, {scratch_at(sum_ + all.offset)}, all.bytes, false);
      }
    }
  }

  void carry(const Part& all) {
    const int host = placement_.host();
    const int taking_part = static_cast<int>(std::bit_floor(static_cast<unsigned>(placement_.hosts())));
    std::vector<int> below;
    for (const int r : placement_.local()) {
      if (r != me_) {
        below.push_back(r);
      }
    }
    if (host + taking_part < placement_.hosts()) {
      below.push_back(carrier_on(host + taking_part));
    }
    sum_ = b_.scratch(all.bytes) - all.offset;
    collect(all, below);
    const Region first = below.empty() ? Region::kInput : Region::kScratch;
    if (host >= taking_part) {
      const int other = carrier_on(host - taking_part);
      b_.send(other, at(first, all), all.bytes).receive(other, output(all.offset), all.bytes);
      if (!below.empty()) {
        b_.await();
      }
    } else {
      halve_and_double(all, taking_part, first, !below.empty());
    }
    for (const int r : below) {
      b_.send(r, output(all.offset), all.bytes);
    }
    if (below.empty()) {
      b_.await();
    }
  }

  // Where the sum for a part is.
  Operand at(Region region, const Part& part) const {
    return region == Region::kScratch ? scratch_at(sum_ + part.offset) : input(part.offset);
  }

  void halve_and_double(const Part& all, int taking_part, Region first, bool passes_on) {
    struct Round {
      int partner;
      Part mine;
      Part theirs;
    };
    std::vector<Round> rounds;
    Part part = all;
    Region region = first;
    for (int bit = taking_part / 2; bit > 0; bit /= 2) {
      const bool upper = (placement_.host() & bit) != 0;
      const auto half = [&](bool second) {
        const Part inside = part_of(part.bytes, element_, 2, second ? 1 : 0);
        return Part{part.offset + inside.offset, inside.bytes};
      };
      const Round round{carrier_on(placement_.host() ^ bit), half(upper), half(!upper)};
      const bool last = bit == 1;
      b_.send(round.partner, at(region, round.theirs), round.theirs.bytes);
      b_.receive_reduce(round.partner, at(region, round.mine),
                        last ? output(round.mine.offset) : at(Region::kScratch, round.mine), round.mine.bytes, last,
                        !upper);
      b_.await();
      region = Region::kScratch;
      part = round.mine;
      rounds.push_back(round);
    }
    for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) {
      b_.send(round->partner, output(round->mine.offset), round->mine.bytes);
      b_.receive(round->partner, output(round->theirs.offset), round->theirs.bytes);
      if (round + 1 != rounds.rend() || passes_on) {
        b_.await();
      }
    }
  }

  std::int64_t bytes_;
  std::int64_t element_;
  int me_;
  Placement placement_;
  int carriers_;
  std::int64_t sum_ = 0;  // in scratch memory, less the offset of the share
  ScheduleBuilder b_;
};

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  if (problem.count == 0) {
    return build_schedule("one_shot", problem, topology, limits);
  }
  const Placement placement(topology);
  if (problem.count < std::int64_t{placement.fewest()} * placement.hosts()) {
    return build_schedule("recursive_doubling", problem, topology, limits);  // there is nothing to halve
  }
  return HalvingDoubling(problem, topology).build();
}

const RegisterAlgorithm registration(
    {"halving_doubling", Collective::kAllReduce,
     "Hosts exchange ever smaller parts of sums, then ever greater ones of the result.",
     "Thakur, Rabenseifner and Gropp 2005", Determinism::kFixed, unsupported, cost, build});

}  // namespace
}  // namespace collectives
