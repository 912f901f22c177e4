// How works are called in messages for people.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/work.h"

namespace collectives {

// "all_reduce", "send", "recv".
std::string_view verb(const Work& work);
// "all_reduce #3 'gradients'", "send to rank 2, tag 0".
std::string call_text(const Work& work);
std::string seconds_text(double seconds);
double seconds_since(Clock::time_point then, Clock::time_point now);
std::string join(const std::vector<std::string>& words);

}  // namespace collectives
