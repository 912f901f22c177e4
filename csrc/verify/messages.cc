#include "verify/messages.h"

#include <algorithm>
#include <string>
#include <utility>

#include "verify/combine.h"

namespace collectives::verification {

Messages::Messages(World& world, Regions& regions)
    : world_(world),
      regions_(regions),
      streams_(static_cast<std::size_t>(world.options.repeats),
               std::vector<Stream>(static_cast<std::size_t>(world.n * world.n))) {}

bool Messages::receives_met(int r) const {
  const Rank& rank = world_.rank(r);
  return std::all_of(rank.receives.begin(), rank.receives.end(), [&](const auto& receive) {
    return receive.second < stream(rank.call, receive.first, r).sends.size();
  });
}

bool Messages::sends_met(int r) const {
  const Rank& rank = world_.rank(r);
  return std::all_of(rank.sends.begin(), rank.sends.end(),
                     [&](const auto& send) { return send.second < stream(rank.call, r, send.first).receives.size(); });
}

void Messages::send(int r, const Step& step) {
  Rank& rank = world_.rank(r);
  Stream& messages = stream(rank.call, r, step.peer);
  const std::size_t index = messages.sends.size();
  Message message{step.length, {}, rank.clock, -1};
  if (step.length > 0) {
    message.background = regions_.begin_background(r, step.peer);
    const Operand& source = world_.schedule(r).sources(step)[0];
    message.data = regions_.read_operand(r, source, step.length, message.background);
    if (rank.call == 0) {
      world_.verdict.link_bytes[static_cast<std::size_t>(r)][step.peer] += step.length;
    }
  }
  rank.sends.emplace_back(step.peer, index);
  messages.sends.push_back(std::move(message));
  meet(messages, index);
  world_.release(r);
}

void Messages::receive(int r, const Step& step) {
  Rank& rank = world_.rank(r);
  const Schedule& schedule = world_.schedule(r);
  Stream& messages = stream(rank.call, step.peer, r);
  const std::size_t index = messages.receives.size();
  Receive& receive = messages.receives.emplace_back();
  receive.bytes = step.length;
  receive.reduces = step.kind == StepKind::kReceiveReduce;
  receive.finish = step.finish;
  receive.own_first = step.own_first;
  receive.clock = rank.clock;
  receive.poster = world_.actor(r);
  receive.poster.clock = &receive.clock;
  if (step.length > 0) {
    receive.background = regions_.begin_background(r, -1);
    receive.destination = regions_.target(r, schedule.destinations(step)[0]);
    if (receive.reduces) {
      const Operand& source = schedule.sources(step)[0];
      const Place from = regions_.place(r, source);
      if (from.memory == receive.destination.memory && from.offset != receive.destination.offset &&
          overlap(from.offset, receive.destination.offset, step.length)) {
        throw Violation{"reduces between ranges that overlap"};
      }
      receive.source = regions_.read_operand(r, source, step.length, receive.background);
    }
  }
  rank.receives.emplace_back(step.peer, index);
  meet(messages, index);
  world_.release(r);  // what this rank does from here on is no longer before the write
}

// The bytes of a message exist from the post of its send: from then on, and from the post of the receive, until the
// await the destination may be written at any time. So the write is ordered after both posts, and after all that
// precedes them.
void Messages::meet(const Stream& messages, std::size_t index) {
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

void Messages::await(int r) {
  Rank& rank = world_.rank(r);
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
      data = receive.own_first ? combine(world_.values, {receive.source, data}, receive.finish)
                               : combine(world_.values, {data, receive.source}, receive.finish);
    }
    Actor writer = receive.poster;
    writer.clock = &rank.clock;
    receive.destination.memory->end_write(writer, receive.destination.offset, data);
    world_.backgrounds[static_cast<std::size_t>(receive.background)].own_end = now;
    world_.backgrounds[static_cast<std::size_t>(message.background)].receiver_end = now;
  }
  rank.receives.clear();
}

// From the end of a send its rank learns only that the memory is free again: with a transport that buffers, it comes
// long before the receive has begun.
void Messages::flush(int r) {
  Rank& rank = world_.rank(r);
  for (const auto& [peer, index] : rank.sends) {
    const int background = stream(rank.call, r, peer).sends[index].background;
    if (background >= 0) {
      world_.backgrounds[static_cast<std::size_t>(background)].own_end = rank.clock[static_cast<std::size_t>(r)];
    }
  }
  rank.sends.clear();
}

void Messages::check_drained() const {
  for (int call = 0; call < world_.options.repeats; ++call) {
    for (int from = 0; from < world_.n; ++from) {
      for (int to = 0; to < world_.n; ++to) {
        const Stream& messages = stream(call, from, to);
        if (messages.sends.size() != messages.receives.size()) {
          throw Violation{"rank " + std::to_string(from) + " sends " + std::to_string(messages.sends.size()) +
                          " messages to rank " + std::to_string(to) + ", which receives " +
                          std::to_string(messages.receives.size())};
        }
      }
    }
  }
}

}  // namespace collectives::verification
