#include "verify/mutation.h"

#include "verify/structure.h"

namespace collectives {
namespace {

bool deletable(StepKind kind) {
  return kind == StepKind::kAwait || kind == StepKind::kFlush || kind == StepKind::kSend ||
         kind == StepKind::kReceive || kind == StepKind::kReceiveReduce;
}

// The same flags without one. Pools only grow, so that ranges of other steps stay valid.
Range without(Schedule& schedule, const Range& range, std::uint32_t index) {
  const auto begin = static_cast<std::uint32_t>(schedule.flags.size());
  for (std::uint32_t i = 0; i < range.count; ++i) {
    if (i != index) {
      schedule.flags.push_back(FlagRef(schedule.flags[range.begin + i]));
    }
  }
  return {begin, range.count - 1};
}

}  // namespace

std::vector<Mutation> mutations(const Schedule& schedule) {
  std::vector<Mutation> all;
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    const std::string where = " step " + std::to_string(i) + " `" + verification::step_text(schedule, i) + "`";
    for (std::uint32_t f = 0; f < step.waits.count; ++f) {
      all.push_back({Mutation::Kind::kDropWait, i, f, "without wait " + std::to_string(f) + " of" + where});
    }
    for (std::uint32_t f = 0; f < step.signals.count; ++f) {
      all.push_back({Mutation::Kind::kDropSignal, i, f, "without signal " + std::to_string(f) + " of" + where});
    }
    if (deletable(step.kind)) {
      all.push_back({Mutation::Kind::kDropStep, i, 0, "without" + where});
    }
  }
  return all;
}

Schedule apply(const Schedule& schedule, const Mutation& mutation) {
  Schedule mutant = schedule;
  Step& step = mutant.steps[mutation.step];
  switch (mutation.kind) {
    case Mutation::Kind::kDropWait:
      step.waits = without(mutant, step.waits, mutation.index);
      break;
    case Mutation::Kind::kDropSignal:
      step.signals = without(mutant, step.signals, mutation.index);
      break;
    case Mutation::Kind::kDropStep:
      step.kind = StepKind::kSync;  // its waits and signals stay
      step.finish = false;
      step.length = 0;
      step.sources = {};
      step.destinations = {};
      break;
  }
  return mutant;
}

}  // namespace collectives
