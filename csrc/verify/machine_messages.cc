// Sends and receives, which go on in the background.
#include <algorithm>
#include <utility>

#include "verify/machine.h"

namespace collectives::verification {

Machine::Stream& Machine::stream(int call, int from, int to) {
  return streams_[static_cast<std::size_t>(call)][static_cast<std::size_t>(from * n_ + to)];
}

const Machine::Stream& Machine::stream(int call, int from, int to) const {
  return streams_[static_cast<std::size_t>(call)][static_cast<std::size_t>(from * n_ + to)];
}

bool Machine::ready(int r, const Step& step) const {
  const Rank& rank = ranks_[static_cast<std::size_t>(r)];
  if (step.kind == StepKind::kAwait) {
    return std::all_of(rank.receives.begin(), rank.receives.end(), [&](const auto& receive) {
      return receive.second < stream(rank.call, receive.first, r).sends.size();
    });
  }
  return step.kind != StepKind::kFlush || sends_met(r);
}

bool Machine::sends_met(int r) const {
  const Rank& rank = ranks_[static_cast<std::size_t>(r)];
  return std::all_of(rank.sends.begin(), rank.sends.end(),
                     [&](const auto& send) { return send.second < stream(rank.call, r, send.first).receives.size(); });
}

int Machine::begin_background(int r, int receiver) {
  const Actor now = actor(r);
  backgrounds_.push_back(
      {{r, now.call, now.step, (*now.clock)[static_cast<std::size_t>(r)]}, kNever, receiver, kNever});
  return static_cast<int>(backgrounds_.size()) - 1;
}

void Machine::send(int r, const Step& step) {
  Rank& rank = ranks_[static_cast<std::size_t>(r)];
  Stream& messages = stream(rank.call, r, step.peer);
  const std::size_t index = messages.sends.size();
  Message message{step.length, {}, rank.clock, -1};
  if (step.length > 0) {
    message.background = begin_background(r, step.peer);
    const Operand& source = schedules_[static_cast<std::size_t>(r)].sources(step)[0];
    message.data = load(r, source, step.length, message.background, rank.call == 0);
    if (rank.call == 0) {
      verdict_.link_bytes[static_cast<std::size_t>(r)][step.peer] += step.length;
    }
  }
  rank.sends.emplace_back(step.peer, index);
  messages.sends.push_back(std::move(message));
  meet(messages, index);
  release(r);
}

void Machine::receive(int r, const Step& step) {
  Rank& rank = ranks_[static_cast<std::size_t>(r)];
  const Schedule& schedule = schedules_[static_cast<std::size_t>(r)];
  Stream& messages = stream(rank.call, step.peer, r);
  const std::size_t index = messages.receives.size();
  Receive& receive = messages.receives.emplace_back();
  receive.bytes = step.length;
  receive.reduces = step.kind == StepKind::kReceiveReduce;
  receive.finish = step.finish;
  receive.own_first = step.own_first;
  receive.clock = rank.clock;
  receive.poster = actor(r);
  receive.poster.clock = &receive.clock;
  if (step.length > 0) {
    receive.background = begin_background(r, -1);
    receive.destination = target(r, schedule.destinations(step)[0]);
    if (receive.reduces) {
      const Operand& source = schedule.sources(step)[0];
      const Place from = place(r, source);
      if (from.memory == receive.destination.memory && from.offset != receive.destination.offset &&
          overlap(from.offset, receive.destination.offset, step.length)) {
        throw Violation{"reduces between ranges that overlap"};
      }
      receive.source = load(r, source, step.length, receive.background, rank.call == 0);
    }
  }
  rank.receives.emplace_back(step.peer, index);
  meet(messages, index);
  release(r);  // what this rank does from here on is no longer before the write
}

// The bytes of a message exist from the post of its send: from then on, and from the post of the receive, until the
// await the destination may be written at any time. So the write is ordered after both posts and whatever they know.
void Machine::meet(const Stream& messages, std::size_t index) {
  if (index >= messages.sends.size() || index >= messages.receives.size()) {
    return;
  }
  const Message& message = messages.sends[index];
  const Receive& receive = messages.receives[index];
  if (message.bytes != receive.bytes) {
    throw Violation{"a message of " + std::to_string(message.bytes) + " bytes meets a receive of " +
                    std::to_string(receive.bytes) + " by rank " + std::to_string(receive.poster.rank) + " in step " +
                    std::to_string(receive.poster.step)};
  }
  if (receive.bytes > 0) {
    Clock clock = receive.clock;
    merge(clock, message.clock);
    Actor writer = receive.poster;
    writer.clock = &clock;
    try {
      receive.destination.memory->begin_write(writer, receive.destination.offset, receive.bytes, receive.background);
    } catch (const Violation& violation) {
      throw Violation{"the receive of rank " + std::to_string(writer.rank) + " in step " + std::to_string(writer.step) +
                      " " + violation.text};
    }
  }
}

void Machine::await(int r) {
  Rank& rank = ranks_[static_cast<std::size_t>(r)];
  for (const auto& [peer, index] : rank.receives) {
    merge(rank.clock, stream(rank.call, peer, r).sends[index].clock);
  }
  const std::uint32_t now = rank.clock[static_cast<std::size_t>(r)];
  for (const auto& [peer, index] : rank.receives) {
    const Stream& messages = stream(rank.call, peer, r);
    const Receive& receive = messages.receives[index];
    const Message& message = messages.sends[index];
    if (receive.bytes == 0) {
      continue;
    }
    Data data = message.data;
    for (Piece& piece : data) {
      ++piece.hops;
    }
    if (receive.reduces) {
      data = receive.own_first ? combine({receive.source, data}, receive.finish)
                               : combine({data, receive.source}, receive.finish);
    }
    Actor writer = receive.poster;
    writer.clock = &rank.clock;
    receive.destination.memory->end_write(writer, receive.destination.offset, data);
    backgrounds_[static_cast<std::size_t>(receive.background)].own_end = now;
    backgrounds_[static_cast<std::size_t>(message.background)].receiver_end = now;
  }
  rank.receives.clear();
}

// The end of a send tells its rank only that the memory is free again: a transport that buffers lets it end long before
// the receiver has got that far.
void Machine::flush(int r) {
  Rank& rank = ranks_[static_cast<std::size_t>(r)];
  for (const auto& [peer, index] : rank.sends) {
    const int background = stream(rank.call, r, peer).sends[index].background;
    if (background >= 0) {
      backgrounds_[static_cast<std::size_t>(background)].own_end = rank.clock[static_cast<std::size_t>(r)];
    }
  }
  rank.sends.clear();
}

}  // namespace collectives::verification
