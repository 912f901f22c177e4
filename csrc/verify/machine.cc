#include "verify/machine.h"

#include <algorithm>
#include <utility>

#include "memory/domain.h"
#include "verify/structure.h"

namespace collectives::verification {
namespace {

// The first value of a flag that releases a wait for `chunk`, or the end.
template <typename Signals>
auto first_enough(const Signals& values, std::int64_t chunk) {
  return std::partition_point(values.begin(), values.end(), [&](const auto& v) { return v.value <= chunk; });
}

}  // namespace

Machine::Machine(const std::vector<Schedule>& schedules, const Problem& problem, const Topology& topology,
                 const VerifyOptions& options, bool reads, Verdict& verdict)
    : schedules_(schedules),
      problem_(problem),
      topology_(topology),
      options_(options),
      reads_(reads),
      verdict_(verdict),
      n_(topology.size),
      values_(topology.size, is_narrow(problem.dtype)) {
  const auto n = static_cast<std::size_t>(n_);
  const auto calls = static_cast<std::size_t>(options.repeats);
  const auto slots = static_cast<std::size_t>(options.limits.slots);
  ranks_.resize(n);
  words_.resize(n * kFlags * slots);
  headers_.assign(calls, std::vector<Clock>(n));
  started_.assign(calls, std::vector<std::uint32_t>(n, 0));
  completed_.assign(calls, std::vector<Clock>(n));
  streams_.assign(calls, std::vector<Stream>(n * n));
  outputs_.assign(calls, std::vector<Data>(n));
  ignored_.assign(n, 0);
  verdict_.link_bytes.assign(n, std::vector<std::int64_t>(n, 0));
  for (auto* counts : {&verdict_.steps, &verdict_.sends, &verdict_.receives, &verdict_.reductions}) {
    counts->assign(n, 0);
  }
  for (int r = 0; r < n_; ++r) {
    const std::string owner = " of rank " + std::to_string(r);
    Rank& rank = ranks_[static_cast<std::size_t>(r)];
    rank.clock.assign(n, 0);
    rank.clock[static_cast<std::size_t>(r)] = 1;
    const std::int64_t in_bytes = options.in_place ? std::max(user_bytes(r, 0), user_bytes(r, 1)) : user_bytes(r, 0);
    rank.user[0] = Shadow((options.in_place ? "the buffer" : "the input") + owner, in_bytes, &backgrounds_);
    rank.user[1] = Shadow("the output" + owner, user_bytes(r, 1), &backgrounds_);
    rank.user[0].read_only = options.in_place ? nullptr : "writes the input of a call that is not in place";
    if (!has_output(r)) {
      rank.user[options.in_place ? 0 : 1].read_only = "writes the output of a rank that gets no result";
    }
    for (std::size_t slot = 0; slot < slots; ++slot) {
      boxes_.emplace_back("slot " + std::to_string(slot) + owner, options.limits.slot_bytes, &backgrounds_);
    }
    for (int line = 0; line < kHeaderLines; ++line) {
      inlines_.emplace_back("header line " + std::to_string(line) + owner, options.limits.inline_bytes, &backgrounds_);
    }
  }
}

void Machine::run() {
  bool moved = true;
  while (moved) {
    moved = false;
    for (int r = 0; r < n_; ++r) {
      Rank& rank = ranks_[static_cast<std::size_t>(r)];
      try {
        while (advance(r)) {
          moved = true;
        }
      } catch (const Violation& violation) {
        std::string where = reads_ ? "where ranks read each other: " : "";
        where += "rank " + std::to_string(r) + ", call " + std::to_string(rank.call);
        if (rank.inside && rank.step < rank.end) {
          where += ", step " + std::to_string(rank.step) + " (iteration " + std::to_string(rank.iteration) + ") `" +
                   step_text(schedules_[static_cast<std::size_t>(r)], rank.step) + "`";
        } else {
          where += rank.inside ? ", at its end" : ", before its start";
        }
        throw Violation{where + ": " + violation.text};
      }
    }
  }
  for (const Rank& rank : ranks_) {
    if (rank.call < options_.repeats) {
      throw Violation{"deadlock: " + stuck()};
    }
  }
  check_drained();
  for (int call = 0; call < options_.repeats; ++call) {
    check_outputs(call);
  }
}

// One step of one rank; false when it is held up or has done all.
bool Machine::advance(int r) {
  Rank& rank = ranks_[static_cast<std::size_t>(r)];
  const Schedule& schedule = schedules_[static_cast<std::size_t>(r)];
  if (rank.call == options_.repeats) {
    return false;
  }
  if (!rank.inside) {
    return start(r);
  }
  if (rank.step == rank.end) {
    return finish(r);
  }
  const Step& step = schedule.steps[rank.step];
  if (step.kind == StepKind::kLoop) {
    rank.loop = rank.step++;
    rank.iteration = 0;
    return true;
  }
  if (step.kind == StepKind::kEndLoop) {
    const bool again = ++rank.iteration < schedule.steps[rank.loop].length;
    rank.iteration = again ? rank.iteration : 0;
    rank.step = again ? rank.loop + 1 : rank.step + 1;
    return true;
  }
  if (!flags_set(r, step) || !ready(r, step)) {
    return false;
  }
  for (const FlagRef& flag : schedule.waits(step)) {
    if (flag.flag == kHeaderFlag) {
      merge(rank.clock, headers_[static_cast<std::size_t>(rank.call)][flag.member]);
    } else {
      const std::int64_t chunk = rank.base + flag.chunk + rank.iteration;
      // The first that suffices: no more than its knowledge is certain.
      merge(rank.clock, first_enough(word(flag.member, flag.flag, chunk), chunk)->clock);
    }
  }
  execute(r, step);
  signal(r, step);
  ++rank.step;
  if (step.kind == StepKind::kChoose) {
    (reads_ ? rank.step : rank.end) = static_cast<std::size_t>(step.length);
  }
  return true;
}

std::vector<Machine::Signal>& Machine::word(int writer, int flag, std::int64_t chunk) {
  return words_[static_cast<std::size_t>((writer * kFlags + flag) * options_.limits.slots +
                                         chunk % options_.limits.slots)];
}

bool Machine::flags_set(int r, const Step& step) {
  const Rank& rank = ranks_[static_cast<std::size_t>(r)];
  for (const FlagRef& flag : schedules_[static_cast<std::size_t>(r)].waits(step)) {
    if (flag.flag == kHeaderFlag) {
      if (headers_[static_cast<std::size_t>(rank.call)][flag.member].empty()) {
        return false;
      }
      continue;
    }
    const std::int64_t chunk = rank.base + flag.chunk + rank.iteration;
    const std::vector<Signal>& values = word(flag.member, flag.flag, chunk);
    if (values.empty() || values.back().value <= chunk) {
      return false;
    }
  }
  return true;
}

void Machine::signal(int r, const Step& step) {
  Rank& rank = ranks_[static_cast<std::size_t>(r)];
  for (const FlagRef& flag : schedules_[static_cast<std::size_t>(r)].signals(step)) {
    if (flag.flag == kHeaderFlag) {
      headers_[static_cast<std::size_t>(rank.call)][static_cast<std::size_t>(r)] = rank.clock;
    } else {
      const std::int64_t chunk = rank.base + flag.chunk + rank.iteration;
      std::vector<Signal>& values = word(r, flag.flag, chunk);
      if (!values.empty() && values.back().value >= chunk + 1) {
        throw Violation{"signals flag " + std::to_string(flag.flag) + " of chunk " +
                        std::to_string(flag.chunk + rank.iteration) + " twice, or after a later chunk of its slot"};
      }
      values.push_back({chunk + 1, rank.clock});
    }
  }
  if (step.signals.count > 0) {
    release(r);
  }
}

// The engine's guard: slots that this call uses before any of its own flags can say so, and its header line, must have
// been left by every mapped rank.
bool Machine::start(int r) {
  Rank& rank = ranks_[static_cast<std::size_t>(r)];
  const std::int64_t chunks = schedules_[static_cast<std::size_t>(r)].chunks;
  const std::int64_t slots = options_.limits.slots;
  const std::int64_t reused = rank.base + std::min(chunks, slots) - slots;  // chunks below this share slots with ours
  int needed = rank.call - kHeaderLines;
  for (int call = rank.call - 1; call > needed && chunks > 0; --call) {
    if (call * chunks < reused) {
      needed = call;
    }
  }
  if (needed >= 0) {
    const std::vector<Clock>& done = completed_[static_cast<std::size_t>(needed)];
    for (int q = 0; q < n_; ++q) {
      if (topology_.mapped(r, q) && done[static_cast<std::size_t>(q)].empty()) {
        return false;
      }
    }
    for (int q = 0; q < n_; ++q) {
      if (topology_.mapped(r, q)) {
        merge(rank.clock, done[static_cast<std::size_t>(q)]);
      }
    }
  }
  rank.inside = true;
  rank.step = 0;
  rank.end = schedules_[static_cast<std::size_t>(r)].steps.size();
  rank.iteration = 0;
  rank.scratch = Shadow("the scratch memory of rank " + std::to_string(r),
                        schedules_[static_cast<std::size_t>(r)].scratch_bytes, &backgrounds_);
  define_user_memory(r);
  started_[static_cast<std::size_t>(rank.call)][static_cast<std::size_t>(r)] = rank.clock[static_cast<std::size_t>(r)];
  return true;
}

std::int64_t Machine::in_place_offset(int r, int which) const {
  if (!has_parts(problem_.collective) || user_bytes(r, which) >= user_bytes(r, 1 - which)) {
    return 0;
  }
  std::int64_t offset = 0;
  for (int q = 0; q < r; ++q) {
    offset += problem_.counts[static_cast<std::size_t>(q)] * problem_.element();
  }
  return offset;
}

// The user's program writes its buffers before every call, and may do so again right after.
void Machine::define_user_memory(int r) {
  Rank& rank = ranks_[static_cast<std::size_t>(r)];
  const Actor user{r, rank.call, -1, &rank.clock};
  const bool contributes = problem_.collective != Collective::kBroadcast || r == problem_.root;
  for (const int which : {0, 1}) {
    if (rank.user[which].bytes() > 0) {
      rank.user[which].write(user, 0, {{0, rank.user[which].bytes(), kUndefined, 0, 0}});
    }
  }
  if (contributes && user_bytes(r, 0) > 0) {
    const std::int64_t offset = options_.in_place ? in_place_offset(r, 0) : 0;
    rank.user[0].write(user, offset, {{0, user_bytes(r, 0), values_.leaf(r), 0, 0}});
  }
}

bool Machine::finish(int r) {
  Rank& rank = ranks_[static_cast<std::size_t>(r)];
  if (!sends_met(r)) {
    return false;
  }
  flush(r);
  if (!rank.receives.empty()) {
    throw Violation{"ends without awaiting its receives"};
  }
  const auto call = static_cast<std::size_t>(rank.call);
  for (int q = 0; q < n_; ++q) {
    const std::uint32_t time = started_[call][static_cast<std::size_t>(q)];
    if (time == 0 || rank.clock[static_cast<std::size_t>(q)] < time) {
      throw Violation{"may complete before rank " + std::to_string(q) + " has started"};
    }
  }
  if (has_output(r) && user_bytes(r, 1) > 0) {
    // The user's program reads the result. Bytes that a peer wrote there directly cross a link now.
    const Actor user{r, rank.call, -1, &rank.clock};
    std::vector<std::int64_t> moved(static_cast<std::size_t>(n_), 0);
    outputs_[call][static_cast<std::size_t>(r)] = rank.user[options_.in_place ? 0 : 1].read(
        user, options_.in_place ? in_place_offset(r, 1) : 0, user_bytes(r, 1), -1, &moved);
    for (int q = 0; call == 0 && q < n_; ++q) {
      verdict_.link_bytes[static_cast<std::size_t>(q)][static_cast<std::size_t>(r)] +=
          moved[static_cast<std::size_t>(q)];
    }
  }
  define_user_memory(r);
  completed_[call][static_cast<std::size_t>(r)] = rank.clock;
  release(r);
  rank.base += schedules_[static_cast<std::size_t>(r)].chunks;
  ++rank.call;
  rank.inside = false;
  return true;
}

}  // namespace collectives::verification
