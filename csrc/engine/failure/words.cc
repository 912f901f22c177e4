#include "engine/failure/words.h"

#include <cstdio>
#include <iterator>

namespace collectives {
namespace {

// The other side of a message.
std::string side_text(bool sending, int peer, int tag) {
  const std::string rank = peer == Message::kAny ? "any rank" : "rank " + std::to_string(peer);
  return (sending ? " to " : " from ") + rank + ", tag " + std::to_string(tag);
}

}  // namespace

std::string_view verb(const Work& work) {
  if (!work.is_message()) {
    return name(work.plan->problem.collective);
  }
  return work.message.sending ? "send" : "recv";
}

std::string call_text(const Work& work) {
  std::string text(verb(work));
  if (work.is_message()) {
    text += side_text(work.message.sending, work.message.peer, work.message.tag);
  } else {
    text += " #" + std::to_string(work.sequence);
  }
  return work.name.empty() ? text : text + " '" + work.name + "'";
}

std::string call_text(const Recorded& call) {
  std::string text(call.is_message() ? (call.sending ? "send" : "recv") : name(call.collective));
  if (call.is_message()) {
    text += side_text(call.sending, call.peer, call.tag);
  } else {
    text += " #" + std::to_string(call.sequence);
  }
  return call.name[0] == '\0' ? text : text + " '" + call.name + "'";
}

std::string bytes_text(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

std::string size_text(const Recorded& call) {
  if (call.collective == Collective::kBarrier) {
    return {};
  }
  const std::string text = bytes_text(call.bytes) + " " + std::string(name(call.dtype));
  return call.tensors > 1 ? text + " in " + std::to_string(call.tensors) + " tensors" : text;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> numbers;
  numbers.reserve(ranks.size());
  for (const int rank : ranks) {
    numbers.push_back(std::to_string(rank));
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(numbers);
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

double seconds_since(Clock::time_point then, Clock::time_point now) {
  return std::chrono::duration<double>(now - then).count();
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : ", ") + word;
  }
  return text;
}

}  // namespace collectives
