// Small damages to schedules. The verifier must reject every one of them, or it, or the schedule, is not tight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace collectives {

struct Mutation {
  enum class Kind : std::uint8_t { kDropWait, kDropSignal, kDropStep };
  Kind kind = Kind::kDropStep;
  std::size_t step = 0;
  std::uint32_t index = 0;  // of the flag among the waits or signals of the step
  std::string text;
};

// Every deletion of one awaited flag, one signal, or one await, flush, send or receive. In a loop body the deletion is
// one of all iterations. The match of a deleted send or receive stays.
std::vector<Mutation> mutations(const Schedule& schedule);

Schedule apply(const Schedule& schedule, const Mutation& mutation);

}  // namespace collectives
