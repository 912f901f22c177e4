#include "runtime/words.h"

#include <cstdio>

namespace collectives {

std::string_view verb(const Work& work) {
  if (!work.is_message()) {
    return name(work.plan->problem.collective);
  }
  return work.message.sending ? "send" : "recv";
}

std::string call_text(const Work& work) {
  std::string text(verb(work));
  if (work.is_message()) {
    text += std::string(work.message.sending ? " to" : " from") + " rank " + std::to_string(work.message.peer) +
            ", tag " + std::to_string(work.message.tag);
  } else {
    text += " #" + std::to_string(work.sequence);
  }
  return work.name.empty() ? text : text + " '" + work.name + "'";
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
