#include "device/executor.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/error.h"

namespace collectives {

DeviceExecutor::DeviceExecutor(const DeviceTeam& team, const DevicePlan& plan, const Problem& problem,
                               const Memory& memory, Events& events, CurrentDevice& current)
    : team_(team),
      plan_(plan),
      problem_(problem),
      memory_(memory),
      api_(device_api()),
      events_(events),
      current_(current),
      n_(team.size()),
      ranks_(n_),
      headers_(n_),
      words_(static_cast<std::size_t>(n_) * kFlags * plan.limits.slots),
      streams_(static_cast<std::size_t>(n_) * n_),
      reduction_() {
  for (Rank& rank : ranks_) {
    rank.awaited.assign(n_, 0);
    rank.sent.assign(n_, false);
  }
  reduction_.dtype = problem.dtype;
  reduction_.op = problem.op;
  reduction_.combination = Combination::kCanonical;
  reduction_.first = 0;
  reduction_.operand = n_;
}

void DeviceExecutor::run() {
  for (bool moved = true; moved;) {
    moved = false;
    for (int r = 0; r < n_; ++r) {
      while (advance(r)) {
        moved = true;
      }
    }
  }
  for (int r = 0; r < n_; ++r) {
    const Rank& rank = ranks_[r];
    if (rank.step < plan_.schedules[r].steps.size() || rank.unmatched_receives > 0 || rank.unmatched_sends > 0) {
      throw std::logic_error("rank " + std::to_string(r) + " of a device collective is stuck at step " +
                             std::to_string(rank.step) + "; please report this");
    }
  }
}

// Does the next step of a rank. False where the rank has none left, or its step needs one of another rank first.
bool DeviceExecutor::advance(int r) {
  Rank& rank = ranks_[r];
  const Schedule& schedule = plan_.schedules[r];
  if (rank.step == schedule.steps.size()) {
    return false;
  }
  const Step& step = schedule.steps[rank.step];
  if (!ready(r, step)) {
    return false;
  }
  for (const FlagRef& flag : schedule.waits(step)) {
    await(r, flag.member, *find(r, flag));
  }
  switch (step.kind) {
    case StepKind::kSync:
    case StepKind::kAwait:
      break;
    case StepKind::kCopy:
    case StepKind::kReduce:
      move(r, step);
      break;
    case StepKind::kSend:
    case StepKind::kReceive:
    case StepKind::kReceiveReduce:
      post(r, step);
      break;
    case StepKind::kFlush:
      flush(r);
      break;
    case StepKind::kChoose:
    case StepKind::kRead:
      throw std::logic_error("a schedule for devices reads private memory, which Limits::read_bytes = 0 excludes");
    case StepKind::kLoop:
      rank.loop_begin = rank.step;
      rank.iterations = step.length;
      break;
    case StepKind::kEndLoop:
      if (++rank.iteration < rank.iterations) {
        rank.step = rank.loop_begin;
      } else {
        rank.iteration = 0;
      }
      break;
  }
  signal(r, step);
  ++rank.step;
  return true;
}

bool DeviceExecutor::ready(int r, const Step& step) const {
  const Rank& rank = ranks_[r];
  const auto waits = plan_.schedules[r].waits(step);
  if (!std::all_of(waits.begin(), waits.end(), [&](const FlagRef& flag) { return find(r, flag) != nullptr; })) {
    return false;
  }
  return (step.kind != StepKind::kAwait || rank.unmatched_receives == 0) &&
         (step.kind != StepKind::kFlush || rank.unmatched_sends == 0);
}

std::size_t DeviceExecutor::word(const FlagRef& flag, std::int64_t chunk) const {
  return static_cast<std::size_t>((flag.member * kFlags + flag.flag) * plan_.limits.slots + chunk % plan_.limits.slots);
}

// The event that ends a wait: that of the chunk's signal, or of the first later one in the same slot. nullptr: not
// recorded yet.
const DeviceExecutor::Point* DeviceExecutor::find(int r, const FlagRef& flag) const {
  if (flag.flag == kHeaderFlag) {
    return headers_[flag.member].event == nullptr ? nullptr : &headers_[flag.member];
  }
  const std::int64_t chunk = flag.chunk + ranks_[r].iteration;
  const std::vector<Signal>& signals = words_[word(flag, chunk)];
  const auto found =
      std::partition_point(signals.begin(), signals.end(), [&](const Signal& s) { return s.value <= chunk; });
  return found == signals.end() ? nullptr : &found->point;
}

// An event behind all that the rank's stream holds by now.
DeviceExecutor::Point DeviceExecutor::record_point(int r) {
  Rank& rank = ranks_[r];
  if (rank.moved) {
    rank.latest = {record_event(events_, current_, team_.stream(r)), rank.latest.number + 1};
    rank.moved = false;
  }
  return rank.latest;
}

void DeviceExecutor::await(int r, int writer, const Point& point) {
  Rank& rank = ranks_[r];
  if (r == writer || rank.awaited[writer] >= point.number) {
    return;
  }
  wait_for(current_, team_.stream(r), point.event);
  rank.awaited[writer] = point.number;
  rank.moved = true;
}

void DeviceExecutor::signal(int r, const Step& step) {
  for (const FlagRef& flag : plan_.schedules[r].signals(step)) {
    if (flag.flag == kHeaderFlag) {
      headers_[r] = record_point(r);
    } else {
      const std::int64_t chunk = flag.chunk + ranks_[r].iteration;
      words_[word({flag.flag, static_cast<std::uint16_t>(r), 0}, chunk)].push_back({chunk + 1, record_point(r)});
    }
  }
}

void DeviceExecutor::post(int r, const Step& step) {
  const Schedule& schedule = plan_.schedules[r];
  if (step.kind == StepKind::kSend) {
    Send send{record_point(r), {}, step.length};
    if (step.length > 0) {
      send.source = place(r, schedule.sources(step)[0]);
      ranks_[r].sent[step.peer] = true;
    }
    ++ranks_[r].unmatched_sends;
    streams_[static_cast<std::size_t>(r * n_ + step.peer)].sends.push_back(send);
    match(r, step.peer);
    return;
  }
  Receive receive{&step, {}, {}};
  if (step.length > 0) {
    receive.destination = place(r, schedule.destinations(step)[0]);
    if (step.kind == StepKind::kReceiveReduce) {
      receive.source = place(r, schedule.sources(step)[0]);
    }
  }
  ++ranks_[r].unmatched_receives;
  streams_[static_cast<std::size_t>(step.peer * n_ + r)].receives.push_back(receive);
  match(step.peer, r);
}

// Moves the messages whose sends and receives both are posted. The receiver may have put later steps into its stream by
// then. That does no harm, since between a receive and its await a schedule touches neither operand, and it lets those
// steps run while the message is still awaited.
void DeviceExecutor::match(int from, int to) {
  Stream& stream = streams_[static_cast<std::size_t>(from * n_ + to)];
  while (!stream.sends.empty() && !stream.receives.empty()) {
    const Send send = stream.sends.front();
    const Receive receive = stream.receives.front();
    const Step& step = *receive.step;
    stream.sends.pop_front();
    stream.receives.pop_front();
    if (send.bytes != step.length) {
      throw std::logic_error("a message of " + std::to_string(send.bytes) + " bytes meets a receive of " +
                             std::to_string(step.length) + "; please report this");
    }
    await(to, from, send.point);
    --ranks_[from].unmatched_sends;
    --ranks_[to].unmatched_receives;
    if (step.length == 0) {
      continue;
    }
    sources_.assign(1, send.source);
    if (step.kind == StepKind::kReceiveReduce) {
      sources_.insert(step.own_first ? sources_.begin() : sources_.end(), receive.source);
    }
    destinations_.assign(1, receive.destination);
    move_all(to, step.kind == StepKind::kReceiveReduce, step.length, step.finish);
  }
}

// All sends of this rank are matched (see ready()), so its messages are in the streams of the receivers by now.
void DeviceExecutor::flush(int r) {
  for (int peer = 0; peer < n_; ++peer) {
    if (ranks_[r].sent[peer]) {
      ranks_[r].sent[peer] = false;
      await(r, peer, record_point(peer));
    }
  }
}

}  // namespace collectives
