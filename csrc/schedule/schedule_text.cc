// The text form of a schedule, apart from the builder because only people and tests read it.
#include <array>
#include <string>
#include <string_view>

#include "schedule/schedule.h"

namespace collectives {
namespace {

std::string_view name_of(StepKind kind) {
  constexpr std::array<std::string_view, 12> kNames = {"sync",    "copy",           "reduce", "send",
                                                       "receive", "receive_reduce", "await",  "flush",
                                                       "loop",    "end_loop",       "choose", "read"};
  return kNames.at(static_cast<std::size_t>(kind));
}

// Appends instead of adding strings up, at which GCC 12 warns of overlaps that cannot be (its bug 105651).
template <typename... Parts>
void add(std::string& text, const Parts&... parts) {
  (text.append(parts), ...);
}

std::string to_text(const Operand& operand) {
  constexpr std::array<std::string_view, 7> kNames = {"input",  "output",     "scratch",    "bounce",
                                                      "inline", "peer_input", "peer_output"};
  std::string text(kNames.at(static_cast<std::size_t>(operand.region)));
  if (operand.region >= Region::kBounce) {
    add(text, "[", std::to_string(operand.member));
    add(text, operand.swaps_buffers() ? "|" + std::to_string(operand.partner) : "", "]");
  }
  if (operand.region == Region::kBounce) {
    add(text, "#", std::to_string(operand.chunk));
  }
  add(text, "@", std::to_string(operand.offset));
  if (operand.stride != 0) {
    add(text, "+", std::to_string(operand.stride), "i");
  }
  return text;
}

std::string to_text(const FlagRef& flag) {
  std::string text = flag.flag == kHeaderFlag ? "header" : "flag";
  if (flag.flag != kHeaderFlag) {
    add(text, std::to_string(flag.flag));
  }
  add(text, "[", std::to_string(flag.member), "]");
  if (flag.flag != kHeaderFlag) {
    add(text, "#", std::to_string(flag.chunk));
  }
  return text;
}

template <typename Items>
void add_list(std::string& text, const Items& items) {
  for (const auto& item : items) {
    add(text, " ", to_text(item));
  }
}

}  // namespace

std::string to_text(const Schedule& schedule) {
  std::string text;
  bool inside = false;  // a loop
  for (const Step& step : schedule.steps) {
    const bool message =
        step.kind == StepKind::kSend || step.kind == StepKind::kReceive || step.kind == StepKind::kReceiveReduce;
    const bool moves = message || step.kind == StepKind::kCopy || step.kind == StepKind::kReduce ||
                       step.kind == StepKind::kRead || step.kind == StepKind::kChoose;
    inside = inside && step.kind != StepKind::kEndLoop;
    add(text, inside ? "  " : "");
    if (step.waits.count > 0) {
      add(text, "wait");
      add_list(text, schedule.waits(step));
      add(text, "; ");
    }
    add(text, name_of(step.kind));
    if (moves || step.kind == StepKind::kLoop) {
      add(text, " ", std::to_string(step.length));
    }
    if (message) {
      add(text, step.kind == StepKind::kSend ? " to " : " from ", std::to_string(step.peer));
    }
    add_list(text, schedule.sources(step));
    if (step.destinations.count > 0) {
      add(text, " ->");
      add_list(text, schedule.destinations(step));
    }
    add(text, step.own_first ? " own first" : "");
    add(text, step.finish ? " finish" : "");
    if (step.signals.count > 0) {
      add(text, "; signal");
      add_list(text, schedule.signals(step));
    }
    add(text, "\n");
    inside = inside || step.kind == StepKind::kLoop;
  }
  return text;
}

}  // namespace collectives
