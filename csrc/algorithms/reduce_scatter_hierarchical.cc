// hierarchical reduce-scatter: within hosts by shared memory, between hosts around rings, both at once.
//
// Where every host has at least c ranks, the first c of every host are carriers, and the parts of a host's ranks are
// dealt out to its carriers. The sums for the parts that the carriers of one place have travel around a ring of these
// carriers, one on each host: in step t of h-1 a carrier sends what it has for those of t+1 hosts before, and adds what
// the ranks of its host have for those of t+2 hosts before to what comes. After the last step it holds the sums for the
// parts of its own host, which go to their owners. So (h-1)/h S bytes leave each of h hosts, however many ranks it has,
// and all ranks of equal hosts have equal work.
//
// While a carrier waits for a segment from the ring, it collects what its host has for the next one. The ring goes
// around once for every block of a few segments of each part, enough to keep links busy. Sums of a block live in
// scratch memory, which is used again when all that was sent from it has left. Parts of no elements travel as tokens,
// so that no rank returns before all have entered.
//
// Source: the two-level reduce-scatter of MPI libraries (Traeff and Rougier 2014); the ring of Patarasuk and Yuan 2009.

#include <algorithm>
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
  // What a host has for the first segment has no time of the ring to hide in.
  const double first = std::min(bytes / topology.size, static_cast<double>(Limits().segment_bytes));
  return 2 * model.mapped.latency_us + placement.most() * first / model.mapped.bytes_per_us +
         (h - 1) * model.message.latency_us + (h - 1) / h * bytes / model.message.bytes_per_us;
}

constexpr std::int64_t kSegmentsOfBlock = 4;

class Hierarchical {
 public:
  Hierarchical(const Problem& problem, const Topology& topology, const Limits& limits)
      : me_(topology.rank),
        exchange_(problem, topology, limits),
        placement_(topology),
        hosts_(placement_.hosts()),
        carriers_(placement_.fewest()),
        dealt_((placement_.most() + carriers_ - 1) / carriers_) {
    for (int r = 0; r < topology.size; ++r) {
      longest_ = std::max(longest_, exchange_.part(me_, r));
    }
    segment_ = part_segment(longest_, problem.element(), limits);
    slot_ = std::min(segment_, longest_);
  }

  Schedule build() {
    if (placement_.place() < carriers_) {
      carry();
    } else {
      for (std::int64_t block = 0; block == 0 || block * block_bytes() < longest_; ++block) {
        contribute(block);
      }
      b_.for_chunks(exchange_.part(me_, me_), segment_, 0, [&](const Chunk& c) {
        b_.receive(local(placement_.place() % carriers_), output(c.offset, c.stride), c.bytes);
      });
      b_.await();
    }
    return b_.build_messages();
  }

 private:
  // What a carrier works on at a time.
  struct Segment {
    int step = 0;   // of the ring
    int owner = 0;  // the rank that gets the sum
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
    std::int64_t sum = 0;  // its place in scratch memory
  };

  int local(int place) const { return placement_.local()[static_cast<std::size_t>(place)]; }
  bool alone() const { return placement_.local().size() == 1; }
  Operand own(const Segment& s) const { return input(exchange_.input_offset(me_, s.owner) + s.offset); }

  std::int64_t sums_of_part() const { return std::min(kSegmentsOfBlock, (longest_ + segment_ - 1) / segment_); }
  std::int64_t block_bytes() const { return kSegmentsOfBlock * segment_; }

  // What the carrier of this host at a place works on in a block, in that order. Parts of different lengths end in
  // different blocks, so there is nothing to repeat.
  std::vector<Segment> segments_of(int place, std::int64_t block) const {
    std::vector<Segment> segments;
    for (int step = 0; step < hosts_; ++step) {
      const std::vector<int>& ranks = placement_.ranks((placement_.host() - step - 1 + hosts_) % hosts_);
      for (auto i = static_cast<std::size_t>(place); i < ranks.size(); i += static_cast<std::size_t>(carriers_)) {
        const std::int64_t bytes = exchange_.part(me_, ranks[i]);
        const std::int64_t end = std::min(bytes, (block + 1) * block_bytes());
        if (bytes == 0 && block == 0) {
          segments.push_back({step, ranks[i], 0, 0, sums_});
        }
        const std::int64_t part = step * dealt_ + static_cast<std::int64_t>(i) / carriers_;
        std::int64_t sum = sums_ + part * sums_of_part() * slot_;
        for (std::int64_t at = block * block_bytes(); at < end; at += segment_, sum += slot_) {
          segments.push_back({step, ranks[i], at, std::min(segment_, end - at), sum});
        }
      }
    }
    return segments;
  }

  // Sends the carriers of this host what this rank has for a block.
  void contribute(std::int64_t block) {
    for (int place = 0; place < carriers_; ++place) {
      if (place != placement_.place()) {
        for (const Segment& s : segments_of(place, block)) {
          b_.send(local(place), own(s), s.bytes);
        }
      }
    }
  }

  bool is_last(const Segment& s) const { return s.step == hosts_ - 1; }
  bool is_result(const Segment& s) const { return is_last(s) && s.owner == me_; }
  // What this rank's host has is summed up there, and what comes from the ring added.
  Operand sum(const Segment& s) const { return scratch_at(s.sum); }
  bool needs_sum(const Segment& s) const { return s.bytes > 0 && (!alone() || (s.step > 0 && !is_result(s))); }

  // Receives what the other ranks of the host have for a segment.
  void collect(const Segment& s) {
    std::int64_t at = collected_;
    for (const int r : placement_.local()) {
      if (r != me_) {
        b_.receive(r, scratch_at(at), s.bytes);
        at += slot_;
        receiving_ = true;
      }
    }
  }
  void reduce_collected(const Segment& s) {
    if (alone() || s.bytes == 0) {
      return;
    }
    std::vector<Operand> sources{own(s)};
    for (std::size_t i = 0; i + 1 < placement_.local().size(); ++i) {
      sources.push_back(scratch_at(collected_ + static_cast<std::int64_t>(i) * slot_));
    }
    b_.reduce(sources, {sum(s)}, s.bytes, false);
  }

  void carry() {
    collected_ = b_.scratch(slot_ * static_cast<std::int64_t>(placement_.local().size() - 1));
    sums_ = b_.scratch(slot_ * hosts_ * dealt_ * sums_of_part());
    for (std::int64_t block = 0; block == 0 || block * block_bytes() < longest_; ++block) {
      const std::vector<Segment> segments = segments_of(placement_.place(), block);
      if (leaving_ && std::any_of(segments.begin(), segments.end(), [&](const Segment& s) { return needs_sum(s); })) {
        b_.flush();
        leaving_ = false;
      }
      contribute(block);
      work_on(segments);
    }
    settle();
  }

  void work_on(const std::vector<Segment>& segments) {
    if (segments.empty()) {
      return;
    }
    collect(segments[0]);
    if (!alone()) {
      settle();
    }
    reduce_collected(segments[0]);
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const Segment& s = segments[i];
      const bool more = i + 1 < segments.size();
      Operand from = alone() ? own(s) : sum(s);
      if (s.step > 0) {
        const Operand to = is_result(s) ? output(s.offset) : sum(s);
        b_.receive_reduce(placement_.around(-1), from, to, s.bytes, is_last(s));
        receiving_ = true;
        from = to;
      }
      if (more) {
        collect(segments[i + 1]);
      }
      if ((s.step > 0 && !is_result(s)) || (more && !alone())) {
        settle();
      }
      if (!is_result(s)) {
        b_.send(is_last(s) ? s.owner : placement_.around(1), from, s.bytes);
        leaving_ = leaving_ || (from.region == Region::kScratch && s.bytes > 0);
      }
      if (more) {
        reduce_collected(segments[i + 1]);
      }
    }
  }

  void settle() {
    if (receiving_) {
      b_.await();
    }
    receiving_ = false;
  }

  int me_;
  Exchange exchange_;
  Placement placement_;
  int hosts_;
  int carriers_;
  int dealt_;                 // how many ranks of a host a carrier carries the parts of, at most
  std::int64_t longest_ = 0;  // part
  std::int64_t segment_ = 0;
  std::int64_t slot_ = 0;       // scratch memory for a segment
  std::int64_t collected_ = 0;  // what the others of the host have for one
  std::int64_t sums_ = 0;
  ScheduleBuilder b_;
  bool receiving_ = false;  // there are receives that were not awaited
  bool leaving_ = false;    // there is something sent from scratch memory that may not have left
};

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  return Hierarchical(problem, topology, limits).build();
}

const RegisterAlgorithm registration({"hierarchical", Collective::kReduceScatter,
                                      "Within hosts and around rings between hosts, every rank its share.",
                                      "Traeff and Rougier 2014; Patarasuk and Yuan 2009", Determinism::kFixed,
                                      unsupported, cost, build});

}  // namespace
}  // namespace collectives
