// What the library writes to stderr.
#pragma once

#include <chrono>
#include <string_view>

namespace collectives {

// Writes to stderr, and waits at most `patience` for a reader: a pipe that is not read must not stop the engine. What
// does not go through in that time is lost. Also for signal handlers.
void say(std::string_view text, std::chrono::milliseconds patience = {}) noexcept;

}  // namespace collectives
