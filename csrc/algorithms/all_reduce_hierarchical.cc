// hierarchical all-reduce: within hosts by shared memory, between hosts around rings, everything at once.
//
// Where every host has at least c ranks, the buffer is split into c shares, and the first c ranks of every host carry
// one each. A carrier reduces its share over its host, all-reduces the sum around a ring of the carriers of that share,
// one on each host, and gives the result to the ranks of its host. So 2 (h-1)/h S bytes leave each of h hosts, however
// many ranks it has, and all ranks of equal hosts have equal work.
//
// The three phases overlap, segment by segment: a carrier reduces over its host the segment that it will need next
// while it waits for one from the ring, and gives a finished segment away as soon as it has it. It takes the results of
// other carriers of its host, which come behind what they have sent of their own buffers, in the second half of the
// ring, one segment later than its own.
//
// Sent data are safe from what overwrites them: a result proves that all it is made of has arrived, as in the ring.
//
// Source: the two-level all-reduce of MPI libraries (Traeff and Rougier 2014); the ring of Patarasuk and Yuan 2009.

#include <algorithm>
#include <functional>
#include <vector>

#include "schedule/placement.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& topology) { return needs_hosts(topology); }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const Placement placement(topology);
  const auto bytes = static_cast<double>(problem.bytes());
  const double h = placement.hosts();
  // The first and the last segment have no time of the ring to hide in.
  const double segment = std::min(bytes / h / placement.fewest(), static_cast<double>(Limits().segment_bytes));
  return 2 * model.mapped.latency_us + 2.0 * placement.most() * segment / model.mapped.bytes_per_us +
         2 * (h - 1) * model.message.latency_us + 2 * (h - 1) / h * bytes / model.message.bytes_per_us;
}

class Hierarchical {
 public:
  Hierarchical(const Problem& problem, const Topology& topology, const Limits& limits)
      : bytes_(problem.bytes()),
        element_(problem.element()),
        placement_(topology),
        hosts_(placement_.hosts()),
        carriers_(placement_.fewest()),
        taken_(hosts_ - 1) {
    segment_ = part_segment(bytes_ / carriers_ / hosts_, element_, limits);
  }

  Schedule build() {
    if (carries()) {
      carry();
    } else {
      send_inputs();
      for (int t = hosts_ - 1; t < 2 * hosts_ - 1; ++t) {
        for (int share = 0; share < carriers_; ++share) {
          each_segment(share, t, [&](const Segment& s) { take_result(share, s); });
        }
      }
      settle();
    }
    return b_.build_messages();
  }

 private:
  struct Segment {
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
    std::int64_t stride = 0;
    int step = 0;  // of the ring
    bool first = false;
    bool last = false;  // of its part
  };

  bool carries() const { return placement_.place() < carriers_; }
  bool alone() const { return placement_.local().size() == 1; }
  int local(int place) const { return placement_.local()[static_cast<std::size_t>(place)]; }
  Operand sum(const Segment& s) const { return alone() ? input(s.offset, s.stride) : output(s.offset, s.stride); }

  // The part of a share that this host works on in a step of the ring: step t is about part (host - t).
  Part part(int share, int step) const {
    const Part whole = part_of(bytes_, element_, carriers_, share);
    const int index = (placement_.host() - step + 2 * hosts_) % hosts_;
    const Part inside = part_of(whole.bytes, element_, hosts_, index);
    return {whole.offset + inside.offset, inside.bytes};
  }

  // Calls body for every segment of a part; for none where the part is empty.
  void each_segment(int share, int step, const std::function<void(const Segment&)>& body) {
    const Part p = part(share, step);
    if (p.bytes > 0) {
      b_.for_chunks(
          p.bytes, segment_, 1,
          [&](const Chunk& c) {
            body({p.offset + c.offset, c.bytes, c.stride, step, c.offset == 0,
                  c.stride == 0 && c.offset + c.bytes == p.bytes});
          },
          2);
    }
  }

  // Sends to the carriers of this host what they need, in the order in which they do.
  void send_inputs() {
    for (int t = 0; t < hosts_; ++t) {
      for (int share = 0; share < carriers_; ++share) {
        if (share != placement_.place()) {
          each_segment(share, t, [&](const Segment& s) { b_.send(local(share), input(s.offset, s.stride), s.bytes); });
        }
      }
    }
  }

  void take_result(int share, const Segment& s) {
    b_.receive(local(share), output(s.offset, s.stride), s.bytes);
    receiving_ = true;
  }

  void settle() {
    if (receiving_) {
      b_.await();
    }
    receiving_ = false;
  }

  // Bytes of scratch memory for a segment.
  std::int64_t slot() const { return std::min(segment_, bytes_); }

  // The segment behind s in the order of the first half of the ring; one of no bytes behind the last.
  Segment behind(const Segment& s) const {
    if (!s.last) {
      const Part p = part(placement_.place(), s.step);
      const std::int64_t offset = s.offset + segment_;
      return {offset, std::min(segment_, p.offset + p.bytes - offset), s.stride, s.step, false, false};
    }
    return first_from(s.step + 1);
  }
  Segment first_from(int step) const {
    for (int t = step; t < hosts_; ++t) {
      const Part p = part(placement_.place(), t);
      if (p.bytes > 0) {
        return {p.offset, std::min(segment_, p.bytes), 0, t, true, false};
      }
    }
    return {};
  }

  // Receives what the other ranks of the host have of a segment of this rank's share, and reduces it.
  void collect(const Segment& s) {
    const std::size_t n = placement_.local().size();
    for (std::size_t i = 0, at = 0; i < n && s.bytes > 0; ++i) {
      if (static_cast<int>(i) != placement_.place()) {
        b_.receive(local(static_cast<int>(i)), collected(at++), s.bytes);
        receiving_ = true;
      }
    }
  }
  void reduce_collected(const Segment& s) {
    if (s.bytes == 0 || alone()) {
      return;
    }
    settle();
    std::vector<Operand> sources{input(s.offset, s.stride)};
    for (std::size_t i = 0; i + 1 < placement_.local().size(); ++i) {
      sources.push_back(collected(i));
    }
    b_.reduce(sources, {output(s.offset, s.stride)}, s.bytes, false);
  }
  Operand collected(std::size_t i) const { return scratch_at(collected_ + static_cast<std::int64_t>(i) * slot()); }

  // A segment is finished: the others of the host get it.
  void give(const Segment& s) {
    for (const int r : placement_.local()) {
      if (r != local(placement_.place())) {
        b_.send(r, output(s.offset, s.stride), s.bytes);
      }
    }
  }

  // Takes the results of the other carriers that lie before this segment: they are as far as this one was then.
  void take_results_before(const Segment& s) {
    if (s.first) {
      take_results_of_steps_before(s.step);
      return;
    }
    const std::int64_t done = s.offset - part(placement_.place(), s.step).offset - segment_;
    for (int share = 0; share < carriers_; ++share) {
      const Part p = part(share, s.step);
      if (share != placement_.place() && done < p.bytes) {
        take_result(share, {p.offset + done, std::min(segment_, p.bytes - done), s.stride, 0, false, false});
      }
    }
  }
  // What the above has left of parts, all of those of the first half of the ring.
  void take_results_of_steps_before(int end) {
    for (; taken_ < end; ++taken_) {
      const std::int64_t own = (part(placement_.place(), taken_).bytes + segment_ - 1) / segment_;
      const std::int64_t segments = taken_ < hosts_ ? 0 : std::max<std::int64_t>(own - 1, 0);
      for (int share = 0; share < carriers_; ++share) {
        const Part p = part(share, taken_);
        std::int64_t done = segments * segment_;
        for (; share != placement_.place() && done < p.bytes; done += segment_) {
          take_result(share, {p.offset + done, std::min(segment_, p.bytes - done), 0, 0, false, false});
        }
      }
    }
  }

  void carry() {
    collected_ = b_.scratch(slot() * static_cast<std::int64_t>(placement_.local().size() - 1));
    send_inputs();
    const int mine = placement_.place();
    collect(first_from(0));
    reduce_collected(first_from(0));
    each_segment(mine, 0, [&](const Segment& s) {
      b_.send(placement_.around(1), sum(s), s.bytes);
      collect(behind(s));
      reduce_collected(behind(s));
    });
    for (int t = 1; t < hosts_; ++t) {
      const bool finish = t == hosts_ - 1;
      each_segment(mine, t, [&](const Segment& s) {
        b_.receive_reduce(placement_.around(-1), sum(s), output(s.offset, s.stride), s.bytes, finish);
        receiving_ = true;
        collect(behind(s));
        settle();
        b_.send(placement_.around(1), output(s.offset, s.stride), s.bytes);
        if (finish) {
          give(s);
        }
        reduce_collected(behind(s));
      });
    }
    for (int t = hosts_; t < 2 * hosts_ - 1; ++t) {
      each_segment(mine, t, [&](const Segment& s) {
        b_.receive(placement_.around(-1), output(s.offset, s.stride), s.bytes);
        receiving_ = true;
        take_results_before(s);
        if (t < 2 * hosts_ - 2) {
          settle();
          b_.send(placement_.around(1), output(s.offset, s.stride), s.bytes);
        } else if (!alone()) {
          settle();
        }
        give(s);
      });
    }
    take_results_of_steps_before(2 * hosts_ - 1);
    settle();
  }

  std::int64_t bytes_;
  std::int64_t element_;
  Placement placement_;
  int hosts_;
  int carriers_;
  int taken_;  // the first step of the ring of whose results not all were taken
  std::int64_t segment_ = 0;
  std::int64_t collected_ = 0;  // scratch
  ScheduleBuilder b_;
  bool receiving_ = false;  // there are receives that were not awaited
};

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  if (problem.count == 0) {
    return build_schedule("one_shot", problem, topology, limits);
  }
  return Hierarchical(problem, topology, limits).build();
}

const RegisterAlgorithm registration(
    {"hierarchical", Collective::kAllReduce,
     "Within hosts, around rings between hosts, and back, every rank a share, all three at once.",
     "Traeff and Rougier 2014; Patarasuk and Yuan 2009", Determinism::kFixed, unsupported, cost, build});

}  // namespace
}  // namespace collectives
