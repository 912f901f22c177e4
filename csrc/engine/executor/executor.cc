#include "engine/executor/executor.h"

#include <algorithm>
#include <utility>

#include "engine/executor/data_steps.h"
#include "engine/record.h"

namespace collectives {
namespace {

// A call is recorded when it first has to wait, and before any step that is longer than this, or that uses a link:
// until then the others wait for what this rank publishes.
constexpr std::int64_t kShortStep = 16 << 10;

}  // namespace

Executor::Executor(std::uint32_t communicator, int rank, const Domain* domain, std::vector<Link*> links,
                   Recorder& recorder, HostMemory* turns, std::vector<int> members,
                   std::vector<Reading::Source> readable)
    : communicator_(communicator),
      recorder_(recorder),
      flags_(rank, static_cast<int>(links.size()), domain, recorder, check_),
      turns_(turns, std::move(members)),
      pool_(communicator, std::move(links)),
      reads_(rank, domain, std::move(readable)) {}

void Executor::bind(Work& work) const {
  const Plan& plan = *work.plan;
  if (work.sources.size() < plan.max_operands) {
    work.sources.resize(plan.max_operands);
    work.destinations.resize(plan.max_operands);
    work.cursors.resize(2 * plan.max_operands);
  }
  work.one_piece = work.input.count <= 1 && work.output.count <= 1;
  work.end = static_cast<std::uint32_t>(plan.schedule.steps.size());
  work.find_arrays();
  work.base_of(Region::kBounce) = 0;
  work.base_of(Region::kPeerInput) = static_cast<std::uintptr_t>(work.input_heap_offset);
  work.base_of(Region::kPeerOutput) = static_cast<std::uintptr_t>(work.output_heap_offset);
}

// For calls that do not begin at once: acquires memory, offers the input to readers, publishes a header that no step
// does.
void Executor::make_ready(Work& work) {
  const Plan& plan = *work.plan;
  if ((plan.schedule.uses_links || plan.schedule.scratch_bytes > 0) && !plan.begins_with_sendrecv) {
    pool_.acquire(work);
  }
  if (plan.schedule.chooses) {
    work.end = static_cast<std::uint32_t>(plan.schedule.steps.size());  // the last run may have ended before
    reads_.offer(work);
  }
  if (!plan.signals_header && !mapped_peers().empty()) {
    flags_.publish_header(work, completed);
  }
}

// A message step, or one of a loop.
Look Executor::run_step(Work& work, const Step& step, int spins) {
  switch (step.kind) {
    case StepKind::kSync:
    case StepKind::kCopy:
    case StepKind::kReduce:
      break;
    case StepKind::kSend:
    case StepKind::kReceive:
    case StepKind::kReceiveReduce:
      LinkSteps::post(work, step);
      break;
    case StepKind::kAwait:
    case StepKind::kFlush:
      return messages_.await(work, step.kind == StepKind::kFlush, spins);
    case StepKind::kChoose:
      reads_.choose(work, step, mapped_peers());
      break;
    case StepKind::kRead:
      return reads_.read(work, step);
    case StepKind::kLoop:
      work.loop_begin = work.step;
      work.iterations = step.length;
      break;
    case StepKind::kEndLoop:
      if (++work.iteration < work.iterations) {
        work.step = work.loop_begin;
      } else {
        work.iteration = 0;
      }
      find_places(work);
      break;
  }
  return Look::kThere;
}

Progress Executor::run(Work& work, int spins) {
  if (ShortSendRecv::begins(work)) [[unlikely]] {
    if (work.record == 0) {
      record_posted(recorder_, work, communicator_);
    }
    spins = sendrecv_.run(work, spins);
  }
  const Step* const steps = work.plan->schedule.steps.data();
  // Where the work stands. Written to the work when it stops, and before anything that may ask: kept there alone, every
  // step would wait for the stores of the one before.
  std::uint32_t at = work.step;
  std::uint32_t next_wait = work.next_wait;
  const auto stop = [&](Look seen) {
    work.step = at;
    work.next_wait = next_wait;
    return stopped(seen);
  };
  for (; at < work.end; ++at) {
    const Step& step = steps[at];
    if (work.record == 0 && (step.waits.count > 0 || step.length > kShortStep || step.kind > StepKind::kReduce)) {
      record_posted(recorder_, work, communicator_);
    }
    if (step.kind == StepKind::kReduce && work.one_piece) {
      DataSteps::locate(work, step);  // before the wait: then it costs no time
    }
    for (; next_wait < step.waits.count; ++next_wait) {
      const bool in_turn = turns_.are_taken() && spins > 1;  // with several works in flight no look is a long one
      Look seen =
          flags_.await(work, work.places.flags[step.waits.begin + next_wait], next_wait == 0, in_turn ? 0 : spins);
      if (in_turn && seen == Look::kNotYet) [[unlikely]] {
        seen = turns_.await(flags_, work, step, next_wait, spins);
      }
      if (seen != Look::kThere) [[unlikely]] {
        return stop(seen);
      }
    }
    if (next_wait > 0 && spins > 1) {
      flags_.own_next_lines(work);
    }
    if (step.kind == StepKind::kCopy || step.kind == StepKind::kReduce) {
      if (!work.one_piece) [[unlikely]] {
        DataSteps::move_spans(work, step);
      } else if (step.kind == StepKind::kCopy) {
        DataSteps::copy(work, step);
      } else {
        DataSteps::reduce(work, step);
      }
    } else if (step.kind != StepKind::kSync) {
      work.step = at;
      work.next_wait = next_wait;
      const Look seen = run_step(work, step, spins);
      at = work.step;
      if (seen != Look::kThere) {
        return stop(seen);
      }
    }
    for (std::uint32_t i = 0; i < step.signals.count; ++i) {
      flags_.signal(work, work.places.flags[step.signals.begin + i], completed);
    }
    next_wait = 0;
  }
  work.step = at;
  work.next_wait = 0;
  if (work.record == 0) {
    record_posted(recorder_, work, communicator_);
  }
  if (!work.streams.empty()) [[unlikely]] {
    const Look seen = messages_.await(work, true, spins);
    if (seen != Look::kThere) {
      return stopped(seen);
    }
  }
  return Progress::kDone;
}

std::vector<int> Executor::missing(const Work& work) const {
  std::vector<int> ranks;
  const Schedule& schedule = work.plan->schedule;
  if (work.step < work.end) {
    const Step& step = schedule.steps[work.step];
    if (step.kind == StepKind::kRead && work.next_wait == step.waits.count) {
      ranks.push_back(schedule.sources(step)[0].member);  // which could not be read
    }
    flags_.add_missing(work, ranks);
  }
  LinkSteps::add_missing(work, ranks);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace collectives
