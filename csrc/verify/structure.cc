#include "verify/structure.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "memory/domain.h"
#include "verify/values.h"

namespace collectives::verification {
namespace {

class Checker {
 public:
  Checker(const Schedule& schedule, const Problem& problem, const Topology& topology, const Limits& limits)
      : schedule_(schedule),
        problem_(problem),
        topology_(topology),
        limits_(limits),
        header_seen_(topology.host.size()) {}

  void run() {
    find_loops();
    check_pitch();
    for (std::size_t i = 0; i < schedule_.steps.size(); ++i) {
      try {
        check(schedule_.steps[i], iterations_[i]);
        check_choice(schedule_.steps[i], i);
      } catch (const Violation& violation) {
        throw Violation{"rank " + std::to_string(topology_.rank) + ", step " + std::to_string(i) + " `" +
                        step_text(schedule_, i) + "`: " + violation.text};
      }
    }
    if (schedule_.chooses != chosen_) {
      throw Violation{"rank " + std::to_string(topology_.rank) + " is marked to choose, and has no choice"};
    }
  }

 private:
  // iterations_[i]: how often step i runs.
  void find_loops() {
    std::int64_t open = 0;
    for (const Step& step : schedule_.steps) {
      if (step.kind == StepKind::kLoop) {
        if (open != 0 || step.length < 1) {
          throw Violation{"a loop is nested or runs less than once"};
        }
        open = step.length;
      } else if (step.kind == StepKind::kEndLoop) {
        if (open == 0) {
          throw Violation{"end_loop without loop"};
        }
        open = 0;
      }
      iterations_.push_back(std::max<std::int64_t>(open, 1));
    }
    if (open != 0) {
      throw Violation{"a loop does not end"};
    }
  }

  void check(const Step& step, std::int64_t iterations) {
    const auto inside = [](const Range& range, std::size_t pool) {
      return range.count == 0 || (range.begin <= pool && range.count <= pool - range.begin);
    };
    require(inside(step.waits, schedule_.flags.size()) && inside(step.signals, schedule_.flags.size()) &&
                inside(step.sources, schedule_.operands.size()) && inside(step.destinations, schedule_.operands.size()),
            "a range points outside its pool");
    check_operands(step);
    for (const Operand& operand : schedule_.sources(step)) {
      check_operand(operand, step, iterations);
    }
    for (const Operand& operand : schedule_.destinations(step)) {
      check_operand(operand, step, iterations);
    }
    check_waits(step, iterations);
    check_signals(step, iterations);
  }

  // The two ways that a schedule can end are checked one behind the other, as what comes before is the same.
  void check_choice(const Step& step, std::size_t index) {
    if (step.kind == StepKind::kChoose) {
      const auto behind = static_cast<std::size_t>(step.length);
      require(!chosen_ && schedule_.chooses, "a second choice, or one in a schedule that is not marked chooses");
      require(behind > index && behind <= schedule_.steps.size(), "goes on outside the schedule");
      require(iterations_[index] == 1 && iterations_[behind - 1] == 1, "a loop goes beyond its side of the choice");
      require(static_cast<std::int64_t>(sizeof(Offer)) <= limits_.inline_bytes,
              "header lines have no room for what ranks offer");
      std::vector<bool> awaited(topology_.host.size());
      for (const FlagRef& flag : schedule_.waits(step)) {
        awaited[flag.member] = awaited[flag.member] || flag.flag == kHeaderFlag;
      }
      for (int r = 0; r < topology_.size; ++r) {
        require(r == topology_.rank || awaited[static_cast<std::size_t>(r)],
                "does not await the header of rank " + std::to_string(r) + ", and could choose otherwise");
      }
      chosen_ = true;
      first_read_ = behind;
    }
    require(step.kind != StepKind::kRead || (chosen_ && index >= first_read_), "reads a rank that may not be readable");
  }

  void check_operands(const Step& step) const {
    const auto counts = [&](std::uint32_t sources, std::uint32_t destinations) {
      const bool token = step.length == 0 && step.sources.count == 0 && step.destinations.count == 0;
      require(token || (step.sources.count == sources && step.destinations.count == destinations),
              "wrong number of operands");
    };
    const auto peer = [&] {
      require(step.peer < topology_.size && step.peer != topology_.rank, "the peer is no other rank of the group");
      require(schedule_.uses_links, "a message step in a schedule that is not marked uses_links");
    };
    require(step.length >= 0, "a negative length");
    switch (step.kind) {
      case StepKind::kCopy:
        require(step.sources.count == 1 && step.destinations.count >= 1, "wrong number of operands");
        break;
      case StepKind::kRead:
        require(step.sources.count == 1 && step.destinations.count == 1, "wrong number of operands");
        for (const Operand& source : schedule_.sources(step)) {
          require(source.region == Region::kPeerInput && source.member != topology_.rank,
                  "reads what is no input of another rank");
        }
        break;
      case StepKind::kReduce:
        require(step.sources.count >= 1 && step.destinations.count >= 1, "wrong number of operands");
        require(step.length % problem_.element() == 0, "a reduction of parts of elements");
        break;
      case StepKind::kSend:
        counts(1, 0);
        peer();
        break;
      case StepKind::kReceive:
        counts(0, 1);
        peer();
        break;
      case StepKind::kReceiveReduce:
        counts(1, 1);
        peer();
        require(step.length % problem_.element() == 0, "a reduction of parts of elements");
        break;
      case StepKind::kLoop:
      case StepKind::kEndLoop:
        require(step.waits.count == 0 && step.signals.count == 0, "a loop mark with waits or signals");
        [[fallthrough]];
      default:
        require(step.sources.count == 0 && step.destinations.count == 0, "wrong number of operands");
    }
  }

  void check_pitch() const {
    constexpr auto kLine = static_cast<std::int64_t>(kCacheLine);  // none belongs to two slots
    const std::int64_t pitch = schedule_.slot_pitch;
    if (pitch < 0 || pitch % kLine != 0 || pitch > (limits_.slot_bytes + kLine - 1) / kLine * kLine) {
      throw Violation{"rank " + std::to_string(topology_.rank) + " packs slots of " + std::to_string(pitch) +
                      " bytes, which are no whole cache lines or more than the " + std::to_string(limits_.slot_bytes) +
                      " that a slot has"};
    }
  }

  void check_operand(const Operand& operand, const Step& step, std::int64_t iterations) const {
    const std::int64_t length = step.length;
    const bool mapped_region = operand.region >= Region::kBounce;
    if (mapped_region) {
      check_member(operand.member);
    }
    if (operand.swaps_buffers()) {
      require(operand.region == Region::kBounce && operand.partner != operand.member && topology_.size == 2,
              "swaps what is no bounce buffer of two ranks");
      check_member(operand.partner);
    }
    std::int64_t bytes = 0;
    switch (operand.region) {
      case Region::kInput:
        bytes = problem_.input_bytes(topology_.rank, topology_.size);
        break;
      case Region::kOutput:
        bytes = problem_.output_bytes(topology_.rank, topology_.size);
        break;
      case Region::kPeerInput:
      case Region::kPeerOutput:
        require(problem_.memory == MemoryKind::kSymmetric || step.kind == StepKind::kRead,
                "addresses private memory of a peer");
        bytes = operand.region == Region::kPeerInput ? problem_.input_bytes(operand.member, topology_.size)
                                                     : problem_.output_bytes(operand.member, topology_.size);
        break;
      case Region::kScratch:
        bytes = schedule_.scratch_bytes;
        break;
      case Region::kBounce:
        check_chunk(operand.chunk, iterations);
        bytes = schedule_.slot_pitch > 0 ? std::min(schedule_.slot_pitch, limits_.slot_bytes) : limits_.slot_bytes;
        break;
      case Region::kInline:
        require(!schedule_.chooses, "uses the payload of a header line, which has the offer of its rank");
        bytes = limits_.inline_bytes;
        break;
    }
    const std::int64_t last = operand.offset + (iterations - 1) * operand.stride;
    require(operand.offset >= 0 && last >= 0 && operand.offset + length <= bytes && last + length <= bytes,
            "an operand reaches outside its region of " + std::to_string(bytes) + " bytes");
  }

  void check_waits(const Step& step, std::int64_t iterations) {
    for (const FlagRef& flag : schedule_.waits(step)) {
      check_flag(flag, iterations);
      require(flag.member != topology_.rank, "waits for a flag of its own");
      if (flag.flag == kHeaderFlag) {
        header_seen_[flag.member] = true;  // also for other flags of the same step: it does not begin without
      }
    }
    for (const FlagRef& flag : schedule_.waits(step)) {
      require(header_seen_[flag.member], "waits for a flag of rank " + std::to_string(flag.member) +
                                             " before its header, so that a mismatch would not be seen");
    }
  }

  void check_signals(const Step& step, std::int64_t iterations) {
    for (const FlagRef& flag : schedule_.signals(step)) {
      check_flag(flag, iterations);
      require(flag.member == topology_.rank, "signals a flag of another rank");
      const bool header = flag.flag == kHeaderFlag;
      require(header != header_signalled_ && (!header || iterations == 1),
              header ? "signals its header twice" : "signals a flag before its header");
      header_signalled_ = true;
    }
  }

  void check_flag(const FlagRef& flag, std::int64_t iterations) const {
    require(flag.flag < kFlags, "there is no such flag");
    check_member(flag.member);
    if (flag.flag == kHeaderFlag) {
      require(flag.chunk == 0, "the header line has no chunks");
    } else {
      check_chunk(flag.chunk, iterations);
    }
  }

  void check_chunk(std::int32_t chunk, std::int64_t iterations) const {
    require(chunk >= 0 && chunk + iterations <= schedule_.chunks,
            "a chunk number beyond the " + std::to_string(schedule_.chunks) + " of this schedule");
  }

  void check_member(int member) const {
    require(member < topology_.size && topology_.mapped(topology_.rank, member),
            "rank " + std::to_string(member) + " is not mapped");
  }

  static void require(bool condition, const std::string& text) {
    if (!condition) {
      throw Violation{text};
    }
  }

  const Schedule& schedule_;
  const Problem& problem_;
  const Topology& topology_;
  const Limits& limits_;
  std::vector<std::int64_t> iterations_;
  std::vector<bool> header_seen_;
  bool header_signalled_ = false;
  bool chosen_ = false;
  std::size_t first_read_ = 0;  // what comes from here on may read
};

std::int64_t count_headers(const Schedule& schedule, bool signals) {
  std::int64_t count = 0;
  for (const Step& step : schedule.steps) {
    for (const FlagRef& flag : signals ? schedule.signals(step) : schedule.waits(step)) {
      count += flag.flag == kHeaderFlag ? 1 : 0;
    }
  }
  return count;
}

}  // namespace

void check_structure(const Schedule& schedule, const Problem& problem, const Topology& topology, const Limits& limits) {
  Checker(schedule, problem, topology, limits).run();
}

void check_agreement(const std::vector<Schedule>& schedules, const Topology& topology) {
  for (const std::vector<int>& ranks : topology.by_host()) {
    const auto waits = [&](int r) { return count_headers(schedules[static_cast<std::size_t>(r)], false) > 0; };
    const bool headers = std::any_of(ranks.begin(), ranks.end(), waits);
    for (const int r : ranks) {
      const Schedule& schedule = schedules[static_cast<std::size_t>(r)];
      if (schedule.chunks != schedules[static_cast<std::size_t>(ranks[0])].chunks) {
        throw Violation{"ranks " + std::to_string(ranks[0]) + " and " + std::to_string(r) +
                        " of one host have different numbers of chunks"};
      }
      if (schedule.slot_pitch != schedules[static_cast<std::size_t>(ranks[0])].slot_pitch) {
        throw Violation{"ranks " + std::to_string(ranks[0]) + " and " + std::to_string(r) +
                        " of one host have slots of different lengths"};
      }
      if (schedule.chooses != schedules[static_cast<std::size_t>(ranks[0])].chooses) {
        throw Violation{"of ranks " + std::to_string(ranks[0]) + " and " + std::to_string(r) +
                        " of one host only one chooses"};
      }
      if (headers && count_headers(schedule, true) != 1) {
        throw Violation{"rank " + std::to_string(r) + " does not signal its header, which others of its host await"};
      }
    }
  }
}

std::string step_text(const Schedule& schedule, std::size_t step) {
  Schedule one;
  one.operands = schedule.operands;
  one.flags = schedule.flags;
  one.steps = {schedule.steps[step]};
  std::string text = to_text(one);
  return text.substr(0, text.size() - 1);
}

}  // namespace collectives::verification
