#include "verify/machine.h"

#include <algorithm>
#include <utility>

#include "memory/domain.h"
#include "verify/combine.h"
#include "verify/outputs.h"
#include "verify/structure.h"

namespace collectives::verification {

Machine::Machine(const std::vector<Schedule>& schedules, const Problem& problem, const Topology& topology,
                 const VerifyOptions& options, bool reads, Verdict& verdict)
    : reads_(reads),
      world_{schedules,
             problem,
             topology,
             options,
             verdict,
             topology.size,
             Values(topology.size, is_narrow(problem.dtype)),
             std::vector<Rank>(static_cast<std::size_t>(topology.size)),
             {}} {
  const auto n = static_cast<std::size_t>(world_.n);
  const auto calls = static_cast<std::size_t>(options.repeats);
  started_.assign(calls, std::vector<std::uint32_t>(n, 0));
  completed_.assign(calls, std::vector<Clock>(n));
  outputs_.assign(calls, std::vector<Data>(n));
  verdict.link_bytes.assign(n, std::vector<std::int64_t>(n, 0));
  for (auto* counts : {&verdict.steps, &verdict.sends, &verdict.receives, &verdict.reductions}) {
    counts->assign(n, 0);
  }
  for (std::size_t r = 0; r < n; ++r) {
    world_.ranks[r].clock.assign(n, 0);
    world_.ranks[r].clock[r] = 1;
  }
}

void Machine::run() {
  bool moved = true;
  while (moved) {
    moved = false;
    for (int r = 0; r < world_.n; ++r) {
      Rank& rank = world_.rank(r);
      try {
        while (advance(r)) {
          moved = true;
        }
      } catch (const Violation& violation) {
        std::string where = reads_ ? "where ranks read each other: " : "";
        where += "rank " + std::to_string(r) + ", call " + std::to_string(rank.call);
        if (rank.inside && rank.step < rank.end) {
          where += ", step " + std::to_string(rank.step) + " (iteration " + std::to_string(rank.iteration) + ") `" +
                   step_text(world_.schedule(r), rank.step) + "`";
        } else {
          where += rank.inside ? ", at its end" : ", before its start";
        }
        throw Violation{where + ": " + violation.text};
      }
    }
  }
  for (const Rank& rank : world_.ranks) {
    if (rank.call < world_.options.repeats) {
      throw Violation{"deadlock: " + stuck()};
    }
  }
  messages_.check_drained();
  for (int call = 0; call < world_.options.repeats; ++call) {
    check_outputs(world_, call, outputs_[static_cast<std::size_t>(call)]);
  }
}

// One step of one rank; false when it is held up or has done all.
bool Machine::advance(int r) {
  Rank& rank = world_.rank(r);
  const Schedule& schedule = world_.schedule(r);
  if (rank.call == world_.options.repeats) {
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
  if (!flags_.are_set(r, step) || !is_ready(r, step)) {
    return false;
  }
  flags_.observe(r, step);
  execute(r, step);
  flags_.signal(r, step);
  ++rank.step;
  if (step.kind == StepKind::kChoose) {
    (reads_ ? rank.step : rank.end) = static_cast<std::size_t>(step.length);
  }
  return true;
}

bool Machine::is_ready(int r, const Step& step) const {
  if (step.kind == StepKind::kAwait) {
    return messages_.receives_met(r);
  }
  return step.kind != StepKind::kFlush || messages_.sends_met(r);
}

// The engine's guard: slots that this call uses before any of its own flags can say so, and its header line, must have
// been left by every mapped rank.
bool Machine::start(int r) {
  Rank& rank = world_.rank(r);
  const std::int64_t chunks = world_.schedule(r).chunks;
  const std::int64_t slots = world_.options.limits.slots;
  const std::int64_t reused = rank.base + std::min(chunks, slots) - slots;  // chunks below this share slots with ours
  int needed = rank.call - kHeaderLines;
  for (int call = rank.call - 1; call > needed && chunks > 0; --call) {
    if (call * chunks < reused) {
      needed = call;
    }
  }
  if (needed >= 0) {
    const std::vector<Clock>& done = completed_[static_cast<std::size_t>(needed)];
    for (int q = 0; q < world_.n; ++q) {
      if (world_.topology.mapped(r, q) && done[static_cast<std::size_t>(q)].empty()) {
        return false;
      }
    }
    for (int q = 0; q < world_.n; ++q) {
      if (world_.topology.mapped(r, q)) {
        merge(rank.clock, done[static_cast<std::size_t>(q)]);
      }
    }
  }
  rank.inside = true;
  rank.step = 0;
  rank.end = world_.schedule(r).steps.size();
  rank.iteration = 0;
  regions_.new_scratch(r);
  regions_.define_user_memory(r);
  started_[static_cast<std::size_t>(rank.call)][static_cast<std::size_t>(r)] = rank.clock[static_cast<std::size_t>(r)];
  return true;
}

bool Machine::finish(int r) {
  Rank& rank = world_.rank(r);
  if (!messages_.sends_met(r)) {
    return false;
  }
  messages_.flush(r);
  if (!rank.receives.empty()) {
    throw Violation{"ends without awaiting its receives"};
  }
  const auto call = static_cast<std::size_t>(rank.call);
  for (int q = 0; q < world_.n; ++q) {
    const std::uint32_t time = started_[call][static_cast<std::size_t>(q)];
    if (time == 0 || rank.clock[static_cast<std::size_t>(q)] < time) {
      throw Violation{"may complete before rank " + std::to_string(q) + " has started"};
    }
  }
  if (world_.has_output(r) && world_.user_bytes(r, 1) > 0) {
    outputs_[call][static_cast<std::size_t>(r)] = regions_.read_output(r);
  }
  regions_.define_user_memory(r);
  completed_[call][static_cast<std::size_t>(r)] = rank.clock;
  world_.release(r);
  rank.base += world_.schedule(r).chunks;
  ++rank.call;
  rank.inside = false;
  return true;
}

void Machine::execute(int r, const Step& step) {
  count_step(r, step.kind);
  switch (step.kind) {
    case StepKind::kCopy:
    case StepKind::kRead:
      return copy(r, step);
    case StepKind::kReduce:
      return reduce(r, step);
    case StepKind::kSend:
      return messages_.send(r, step);
    case StepKind::kReceive:
    case StepKind::kReceiveReduce:
      return messages_.receive(r, step);
    case StepKind::kAwait:
      return messages_.await(r);
    case StepKind::kFlush:
      return messages_.flush(r);
    default:
      return;
  }
}

void Machine::count_step(int r, StepKind kind) {
  const auto i = static_cast<std::size_t>(r);
  if (world_.ranks[i].call != 0) {
    return;
  }
  const bool receives = kind == StepKind::kReceive || kind == StepKind::kReceiveReduce;
  world_.verdict.sends[i] += kind == StepKind::kSend ? 1 : 0;
  world_.verdict.receives[i] += receives ? 1 : 0;
  world_.verdict.reductions[i] += kind == StepKind::kReduce || kind == StepKind::kReceiveReduce ? 1 : 0;
  const bool copies = kind == StepKind::kCopy || kind == StepKind::kRead;
  world_.verdict.steps[i] += receives || copies || kind == StepKind::kSend || kind == StepKind::kReduce;
}

void Machine::copy(int r, const Step& step) {
  if (step.length == 0) {
    return;
  }
  const Schedule& schedule = world_.schedule(r);
  const Operand& source = schedule.sources(step)[0];
  const Place from = regions_.place(r, source);
  std::vector<Place> destinations;
  for (const Operand& operand : schedule.destinations(step)) {
    const Place to = regions_.place(r, operand);
    if (to.memory == from.memory && to.offset == from.offset) {
      continue;  // a copy onto itself, as in place: the executor leaves the memory alone
    }
    destinations.push_back(regions_.target(r, operand));
    if (to.memory == from.memory && overlap(to.offset, from.offset, step.length)) {
      throw Violation{"copies between ranges that overlap"};
    }
  }
  if (destinations.empty()) {
    return;
  }
  const Data data = regions_.read_operand(r, source, step.length, -1);
  for (const Place& to : destinations) {
    to.memory->write(world_.actor(r), to.offset, data);
  }
}

void Machine::reduce(int r, const Step& step) {
  if (step.length == 0) {
    return;
  }
  const Schedule& schedule = world_.schedule(r);
  std::vector<Place> places;
  std::vector<Data> sources;
  for (const Operand& operand : schedule.sources(step)) {
    places.push_back(regions_.place(r, operand));
    sources.push_back(regions_.read_operand(r, operand, step.length, -1));
  }
  const Data data = combine(world_.values, sources, step.finish);
  for (const Operand& operand : schedule.destinations(step)) {
    const Place to = regions_.target(r, operand);
    for (const Place& from : places) {
      if (to.memory == from.memory && to.offset != from.offset && overlap(to.offset, from.offset, step.length)) {
        throw Violation{"reduces between ranges that overlap"};
      }
    }
    to.memory->write(world_.actor(r), to.offset, data);
  }
}

std::string Machine::stuck() const {
  std::string text;
  for (int r = 0; r < world_.n; ++r) {
    const Rank& rank = world_.rank(r);
    if (rank.call == world_.options.repeats) {
      continue;
    }
    const Schedule& schedule = world_.schedule(r);
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(r) + ", call " + std::to_string(rank.call);
    if (!rank.inside) {
      text += " cannot start";
    } else if (rank.step == rank.end) {
      text += " cannot end, as sends have met no receive";
    } else {
      text += " is held up in step " + std::to_string(rank.step) + " (iteration " + std::to_string(rank.iteration) +
              ") `" + step_text(schedule, rank.step) + "`";
    }
  }
  return text;
}

}  // namespace collectives::verification
