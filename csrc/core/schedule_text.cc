// The text form of a schedule, apart from the builder because only people and tests read it.
#include <array>
#include <string>
#include <string_view>

#include "core/schedule.h"

namespace collectives {
namespace {

std::string_view name_of(StepKind kind) {
  constexpr std::array<std::string_view, 10> kNames = {"sync",           "copy",  "reduce", "send", "receive",
                                                       "receive_reduce", "await", "flush",  "loop", "end_loop"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::string to_text(const Operand& operand) {
  constexpr std::array<std::string_view, 7> kNames = {"input",  "output",     "scratch",    "box",
                                                      "inline", "peer_input", "peer_output"};
  std::string text(kNames.at(static_cast<std::size_t>(operand.region)));
  if (operand.region >= Region::kBox) {
    text += "[" + std::to_string(operand.member) + "]";
  }
  if (operand.region == Region::kBox) {
    text += "#" + std::to_string(operand.chunk);
  }
  text += "@" + std::to_string(operand.offset);
  if (operand.stride != 0) {
    text += "+" + std::to_string(operand.stride) + "i";
  }
  return text;
}

std::string to_text(const FlagRef& flag) {
  if (flag.flag == kHeaderFlag) {
    return "header[" + std::to_string(flag.member) + "]";
  }
  return "flag" + std::to_string(flag.flag) + "[" + std::to_string(flag.member) + "]#" + std::to_string(flag.chunk);
}

template <typename Items>
std::string list(const Items& items) {
  std::string text;
  for (const auto& item : items) {
    text += " " + to_text(item);
  }
  return text;
}

}  // namespace

std::string to_text(const Schedule& schedule) {
  std::string text;
  std::string indent;
  for (const Step& step : schedule.steps) {
    if (step.kind == StepKind::kEndLoop) {
      indent.clear();
    }
    std::string line;
    if (step.waits.count > 0) {
      line += " wait" + list(schedule.waits(step));
    }
    const bool message =
        step.kind == StepKind::kSend || step.kind == StepKind::kReceive || step.kind == StepKind::kReceiveReduce;
    const bool moves = message || step.kind == StepKind::kCopy || step.kind == StepKind::kReduce;
    line += (line.empty() ? " " : "; ") + std::string(name_of(step.kind));
    if (moves || step.kind == StepKind::kLoop) {
      line += " " + std::to_string(step.length);
    }
    if (message) {
      line += (step.kind == StepKind::kSend ? " to " : " from ") + std::to_string(step.peer);
    }
    line += list(schedule.sources(step));
    if (step.destinations.count > 0) {
      line += " ->" + list(schedule.destinations(step));
    }
    if (step.finish) {
      line += " finish";
    }
    if (step.signals.count > 0) {
      line += "; signal" + list(schedule.signals(step));
    }
    text += indent + line.substr(1) + "\n";
    if (step.kind == StepKind::kLoop) {
      indent = "  ";
    }
  }
  return text;
}

}  // namespace collectives
