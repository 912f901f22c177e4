// What the parts of the abstract machine have in common: the problem, and how far each rank is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/topology.h"
#include "schedule/algorithm.h"
#include "schedule/schedule.h"
#include "verify/shadow.h"
#include "verify/values.h"
#include "verify/verifier.h"

namespace collectives::verification {

struct Rank {
  Clock clock;
  int call = 0;
  std::int64_t base = 0;  // chunks of the calls before this one
  bool inside = false;
  std::size_t step = 0;
  std::size_t end = 0;   // the step behind the last
  std::size_t loop = 0;  // the kLoop step, when iteration > 0
  std::int64_t iteration = 0;
  std::vector<std::pair<int, std::size_t>> receives;  // peer and index, posted and not awaited
  std::vector<std::pair<int, std::size_t>> sends;     // peer and index, posted and not flushed
  Shadow user[2];                                     // input, output
  Shadow scratch;
};

struct World {
  const std::vector<Schedule>& schedules;
  Problem problem;
  const Topology& topology;
  const VerifyOptions& options;
  Verdict& verdict;
  int n;
  Values values;
  std::vector<Rank> ranks;
  std::vector<Background> backgrounds;

  Rank& rank(int r) { return ranks[static_cast<std::size_t>(r)]; }
  const Rank& rank(int r) const { return ranks[static_cast<std::size_t>(r)]; }
  const Schedule& schedule(int r) const { return schedules[static_cast<std::size_t>(r)]; }
  // The rank in the step that it is in.
  Actor actor(int r) const { return {r, rank(r).call, static_cast<int>(rank(r).step), &rank(r).clock}; }
  // What the rank does from here on is no longer before what others know of it.
  void release(int r) { ++rank(r).clock[static_cast<std::size_t>(r)]; }

  std::int64_t user_bytes(int r, int which) const {
    return which == 0 ? problem.input_bytes(r, n) : problem.output_bytes(r, n);
  }
  bool has_output(int r) const { return problem.has_output(r); }
  // Where input and output begin in the memory of a call in place: in vector collectives the shorter one is the part of
  // the rank inside the longer one.
  std::int64_t in_place_offset(int r, int which) const {
    if (!is_vector(problem.collective) || user_bytes(r, which) >= user_bytes(r, 1 - which)) {
      return 0;
    }
    std::int64_t offset = 0;
    for (int q = 0; q < r; ++q) {
      offset += problem.counts[static_cast<std::size_t>(q)] * problem.element();
    }
    return offset;
  }
};

}  // namespace collectives::verification
