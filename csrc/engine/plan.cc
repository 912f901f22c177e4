#include "engine/plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>

#include "core/error.h"
#include "cpu/cache_lines.h"
#include "cpu/processor.h"
#include "cpu/streaming.h"

namespace collectives {
namespace {

bool in_mapped_memory(Region region) {
  return region == Region::kBounce || region == Region::kInline || region == Region::kPeerOutput;
}

// Bytes that one run of the schedule moves through memory that ranks share.
std::int64_t mapped_bytes(const Schedule& schedule) {
  std::int64_t total = 0;
  std::int64_t times = 1;
  // Where a schedule has two ways to its end, only the first counts: both move the same.
  std::size_t end = schedule.steps.size();
  for (std::size_t i = 0; i < end; ++i) {
    const Step& step = schedule.steps[i];
    end = step.kind == StepKind::kChoose ? static_cast<std::size_t>(step.length) : end;
    if (step.kind == StepKind::kLoop) {
      times = step.length;
    } else if (step.kind == StepKind::kEndLoop) {
      times = 1;
    } else {
      for (const Operand& operand : schedule.destinations(step)) {
        total += in_mapped_memory(operand.region) ? times * step.length : 0;
      }
      for (const Operand& operand : schedule.sources(step)) {
        total += operand.region == Region::kPeerInput ? times * step.length : 0;
      }
    }
  }
  return total;
}

// Where two ranks swap bounce buffers, the rank that fills one next has read its lines before, but shares them with the
// other rank, and each store to a shared line waits a little. Up to this length that wait costs more than acquiring
// ownership of the lines when they are read.
constexpr std::int64_t kMostOwnedOfSwapped = 512;

// Up to this length, what a rank does around a wait is a good part of the time of the whole call.
constexpr std::int64_t kShort = 2048;

// How much of its bounce buffer a rank prefetches while it waits: what it will write in the next call but one. Only
// where it has nothing else to do meanwhile, and no more than the wait has time for. Where ranks swap bounce buffers,
// the lines are in its cache already.
std::int64_t ahead_bytes(const Schedule& s) {
  if (s.swaps_buffers) {
    return 0;
  }
  const bool publishes = s.steps.size() == 2 && s.steps[0].kind == StepKind::kCopy && s.steps[0].length <= kOwnBlock &&
                         s.steps[1].kind == StepKind::kReduce;
  return publishes && s.destinations(s.steps[0])[0].region == Region::kBounce ? std::min(s.steps[0].length, kShort) : 0;
}

bool uses_bounce(const Schedule& schedule) {
  return std::any_of(schedule.operands.begin(), schedule.operands.end(),
                     [](const Operand& o) { return o.region == Region::kBounce; });
}

// How much of its bounce buffer the rank fills from the start of a slot on.
std::int64_t filled_bytes(const Schedule& schedule, int rank) {
  std::int64_t bytes = 0;
  for (const Step& step : schedule.steps) {
    for (const Operand& to : schedule.destinations(step)) {
      if (to.region == Region::kBounce && to.member == rank && to.offset == 0) {
        bytes = std::max(bytes, step.length);
      }
    }
  }
  return bytes;
}

// Decides what the rank does around its wait for the headers of others (LookTactics): first_look, owning and
// owned_bytes. Prefetching for ownership replaces ahead_bytes and owns_copied, which have been set before.
void plan_meeting(Plan& plan, const Topology& topology) {
  const Problem& problem = plan.problem;
  const Processor& here = processor();
  if (problem.bytes() > kShort || topology.crowded()) {
    return;
  }
  plan.first_look = here.looks_late ? FirstLook::kLateNear : FirstLook::kAtOnce;
  // Not for a barrier, since any call may follow: where that fills a bounce buffer first, a header line that was
  // prefetched before only gets into the way of looks, and has to be fetched twice.
  if (!here.owns_next_lines || problem.bytes() == 0 || problem.memory != MemoryKind::kPrivate ||
      plan.schedule.chunks > 1) {
    return;
  }
  const bool broadcast = problem.collective == Collective::kBroadcast;
  const bool swaps = plan.schedule.swaps_buffers;
  if (!uses_bounce(plan.schedule)) {
    plan.owning = Owning::kEverywhere;
    plan.first_look = here.looks_late ? FirstLook::kLate : FirstLook::kAtOnce;
  } else if (problem.bytes() <= (swaps       ? here.most_owned_of_swapped
                                 : broadcast ? here.most_owned_of_broadcast
                                             : here.most_owned)) {
    plan.owning = here.owns_next_near ? Owning::kEverywhere : Owning::kFar;
    plan.first_look = here.looks_late ? FirstLook::kLateByDistance : FirstLook::kFenced;
    plan.owned_bytes = swaps ? 0 : filled_bytes(plan.schedule, topology.rank);
    // The readers of a broadcast need not acquire ownership of lines that the root prefetches for ownership. In vector
    // collectives there may be more lines than those that are prefetched, and for sources of a reduction it costs
    // nothing.
    plan.owns_copied = plan.owns_copied && !(broadcast && here.owns_next_near);
  }
  if (plan.owning != Owning::kNowhere) {
    plan.ahead_bytes = 0;
  }
}

// Longer messages gain nothing by the short way of a sendrecv.
constexpr std::int64_t kMostSwapped = 32 << 10;

// Whether the schedule is one message each way (Plan::kSendRecvSteps steps) and then copies and reductions of what has
// come.
bool begins_with_sendrecv(const Schedule& s) {
  constexpr StepKind kKinds[Plan::kSendRecvSteps] = {StepKind::kSend, StepKind::kReceive, StepKind::kAwait,
                                                     StepKind::kFlush};
  for (std::size_t i = 0; i < s.steps.size(); ++i) {
    const Step& step = s.steps[i];
    const bool begins = i < Plan::kSendRecvSteps;
    if (step.waits.count > 0 || step.signals.count > 0 ||
        (begins ? step.kind != kKinds[i] : step.kind != StepKind::kCopy && step.kind != StepKind::kReduce)) {
      return false;
    }
  }
  if (s.steps.size() < Plan::kSendRecvSteps) {
    return false;
  }
  const Step& receive = s.steps[1];
  return receive.peer == s.steps[0].peer && receive.length == s.steps[0].length && receive.length > 0 &&
         receive.length <= kMostSwapped && s.scratch_bytes == receive.length &&
         s.destinations(receive)[0].region == Region::kScratch;
}

// Whether what the ranks of this host read and write together is too much for the caches.
bool streams(const Problem& problem, const Topology& topology) {
  const bool vector = is_vector(problem.collective);
  std::int64_t total = 0;
  for (int r = 0; r < topology.size; ++r) {
    if (topology.mapped(r, topology.rank)) {
      // What comes to other ranks of an uneven all_to_all is not known; all together get what they give.
      total += !vector ? problem.bytes()
               : problem.own != nullptr
                   ? 2 * problem.input_bytes(r, topology.size)
                   : problem.input_bytes(r, topology.size) + problem.output_bytes(r, topology.size);
    }
  }
  return total >= (vector ? kStreamingVector : kStreamingDense);
}

}  // namespace

std::unique_ptr<Plan> make_plan(const Signature& signature, const Problem& problem, const Algorithm& algorithm,
                                const Topology& topology, const Domain* domain) {
  auto plan = std::make_unique<Plan>();
  plan->signature = signature;
  plan->problem = problem;
  plan->algorithm = &algorithm;
  plan->algorithm_number =
      signature.algorithm != 0 ? signature.algorithm : static_cast<std::uint8_t>(kChosen | algorithm_id(algorithm));
  plan->element_shift = std::countr_zero(static_cast<std::uint64_t>(problem.element()));
  plan->schedule = build_schedule(algorithm.name, problem, topology, domain != nullptr ? domain->limits() : Limits());
  const Schedule& schedule = plan->schedule;
  plan->places = Places(schedule, domain);
  const Reducer& reducer = best_reducer();
  plan->copy = reducer.kernel(DType::kUInt8, Op::kSum, false);
  if (reduces(problem.collective)) {
    plan->reduce = reducer.kernel(problem.dtype, problem.op, false);
    plan->reduce_finish = reducer.kernel(problem.dtype, problem.op, true);
    if (is_prefix(problem.collective) && problem.op == Op::kAvg) {
      throw ArgumentTypeError(std::string(name(problem.collective)) + " has no average");
    }
    if (plan->reduce == nullptr || plan->reduce_finish == nullptr) {
      throw ArgumentTypeError("op " + std::string(name(problem.op)) + " has no meaning for dtype " +
                              std::string(name(problem.dtype)));
    }
  }
  const bool marked =
      std::any_of(schedule.operands.begin(), schedule.operands.end(), [](const Operand& o) { return o.own; });
  const auto reduces_up_to = [&](std::int64_t bytes) {
    return std::ranges::all_of(schedule.steps,
                               [&](const Step& s) { return s.kind != StepKind::kReduce || s.length <= bytes; });
  };
  plan->owns_copied = marked && processor().owns_read_lines && !schedule.swaps_buffers;
  plan->owns_reduced = marked && (schedule.swaps_buffers ? reduces_up_to(kMostOwnedOfSwapped)
                                                         : processor().owns_read_lines || reduces_up_to(kOwnBlock));
  for (const Step& step : schedule.steps) {
    plan->max_operands = std::max<std::size_t>({plan->max_operands, step.sources.count, step.destinations.count});
    if (step.kind == StepKind::kSend || step.kind == StepKind::kReceive || step.kind == StepKind::kReceiveReduce) {
      if (std::find(plan->peers.begin(), plan->peers.end(), step.peer) == plan->peers.end()) {
        plan->peers.push_back(step.peer);
      }
    }
    for (const FlagRef& flag : schedule.signals(step)) {
      plan->signals_header = plan->signals_header || flag.flag == kHeaderFlag;
    }
  }
  plan->begins_with_sendrecv = domain == nullptr && begins_with_sendrecv(schedule);
  plan->begins_at_once =
      plan->signals_header && !schedule.uses_links && schedule.scratch_bytes == 0 && !schedule.chooses;
  plan->mapped_bytes = mapped_bytes(schedule);
  plan->streams = streams(problem, topology);
  plan->streams_in_place = problem.collective != Collective::kAllReduce || processor().streams_in_place;
  plan->ahead_bytes = ahead_bytes(schedule);
  plan_meeting(*plan, topology);
  plan->by_string = processor().fills_by_string && plan->ahead_bytes == 0;  // prefetched lines are here already
  return plan;
}

int algorithm_number(Problem problem, const std::string& name, const Topology& topology) {
  if (name == "auto") {
    return 0;
  }
  const Algorithm* algorithm = find_algorithm(problem.collective, name);
  const std::size_t parts = problem.collective == Collective::kAllToAll ? 1 : static_cast<std::size_t>(topology.size);
  problem.counts.assign(is_vector(problem.collective) ? parts : 0, 0);
  if (algorithm == nullptr || (topology.size > 1 && !algorithm->unsupported(problem, topology).empty())) {
    // Throws an error that lists the names, or has the reason.
    build_schedule(name, problem, topology, Limits());
    throw ArgumentError("algorithm " + name + " cannot be used here");
  }
  return algorithm_id(*algorithm);
}

}  // namespace collectives
