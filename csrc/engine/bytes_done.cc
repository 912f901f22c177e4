// How far a work has come, in bytes: for errors.

#include <algorithm>

#include "engine/failure/words.h"

namespace collectives {
namespace {

// Of the requests of a work that are not done.
std::int64_t outstanding(const Work& work) {
  std::int64_t bytes = 0;
  for (const auto& stream : work.streams) {
    for (const SendRequest* request : stream->sends) {
      bytes += request->remaining;
    }
    for (const ReceiveRequest* request : stream->receives) {
      bytes += request->remaining;
    }
  }
  return bytes;
}

}  // namespace

// Schedules move some bytes more than once. What counts is which part of all its moves a rank has behind it.
std::int64_t bytes_done(const Work& work) {
  const std::int64_t whole = std::max(work.input.bytes, work.output.bytes);
  if (work.is_message()) {
    return work.streams.empty() ? 0 : whole - outstanding(work);
  }
  double total = 0;
  double done = 0;
  std::int64_t iterations = 1;
  std::uint32_t loop_begin = 0;
  std::uint32_t loop_end = 0;
  const std::vector<Step>& steps = work.plan->schedule.steps;
  for (std::uint32_t i = 0; i < work.end; ++i) {
    if (steps[i].kind == StepKind::kChoose) {
      if (work.step > i && work.end > steps[i].length) {
        i = static_cast<std::uint32_t>(steps[i].length) - 1;  // what was not chosen does not count
      }
      continue;
    }
    if (steps[i].kind == StepKind::kLoop) {
      iterations = steps[i].length;
      loop_begin = i;
      for (loop_end = i; steps[loop_end].kind != StepKind::kEndLoop;) {
        ++loop_end;
      }
      continue;
    }
    if (steps[i].kind == StepKind::kEndLoop) {
      iterations = 1;
      continue;
    }
    const auto length = static_cast<double>(steps[i].length);
    const bool inside = iterations > 1 && work.step > loop_begin && work.step <= loop_end;
    const std::int64_t before = inside ? work.iteration + (i < work.step ? 1 : 0) : i < work.step ? iterations : 0;
    total += length * static_cast<double>(iterations);
    done += length * static_cast<double>(before);
  }
  done -= static_cast<double>(outstanding(work));
  return total <= 0 ? 0 : static_cast<std::int64_t>(static_cast<double>(whole) * std::clamp(done / total, 0.0, 1.0));
}

}  // namespace collectives
