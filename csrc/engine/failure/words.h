// How works are called in messages for people.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/work.h"
#include "recorder/recorder.h"

namespace collectives {

// "all_reduce", "send", "recv".
std::string_view verb(const Work& work);
// "all_reduce #3 'gradients'", "send to rank 2, tag 0".
std::string call_text(const Work& work);
// "4.0 MiB float32", with the number of tensors where there are several; empty where there are none.
std::string size_text(const Recorded& call);
// The same as call_text() of a call in the recorder.
std::string call_text(const Recorded& call);
// "rank 1", "ranks 1, 2".
std::string ranks_text(const std::vector<int>& ranks);
std::string bytes_text(std::int64_t bytes);
// How much of the tensors of a work its rank has behind it. bytes_done.cc
std::int64_t bytes_done(const Work& work);
std::string seconds_text(double seconds);
double seconds_since(Clock::time_point then, Clock::time_point now);
std::string join(const std::vector<std::string>& words);

}  // namespace collectives
