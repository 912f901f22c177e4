// How errors and warnings name calls and times.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

namespace collectives {

using NcclClock = std::chrono::steady_clock;

inline double seconds_since(NcclClock::time_point then) {
  return std::chrono::duration<double>(NcclClock::now() - then).count();
}

inline NcclClock::time_point later(NcclClock::time_point then, double seconds) {
  constexpr double kMost = 1e9;  // the clock counts nanoseconds in 64 bits
  return then +
         std::chrono::duration_cast<NcclClock::duration>(std::chrono::duration<double>(std::min(seconds, kMost)));
}

inline std::string nccl_seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

// Of a call that NCCL has not put into the stream in time.
inline std::string nccl_in_progress_text(double seconds) {
  return " is still in progress after " + nccl_seconds_text(seconds) +
         ", longer than its timeout; set NCCL_DEBUG=INFO to see what NCCL waits for, or raise timeout= or "
         "COLLECTIVES_TIMEOUT";
}

inline std::string nccl_call_text(const std::string& collective, const std::string& name) {
  return collective + " by NCCL" + (name.empty() ? "" : " '" + name + "'");
}

}  // namespace collectives
