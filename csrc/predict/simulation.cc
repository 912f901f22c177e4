#include "predict/simulation.h"

#include <algorithm>

namespace collectives {
namespace {

// What a port sends at a time of one stream before it is the turn of another. Long messages are cut into this many
// pieces: they take their time however it is divided, and each piece costs the simulation some.
constexpr std::int64_t kPiece = 64 << 10;
constexpr std::int64_t kMostPieces = 8;
// Until a rank sees what another one has written into memory that they share.
constexpr Picoseconds kSeen = 150 * kNanosecond;

}  // namespace

Simulation::Simulation(const std::vector<Schedule>& schedules, const Topology& topology, const Network& network,
                       const Fold& fold, const ProcessorCosts& costs)
    : topology_(topology),
      fold_(fold),
      costs_(costs),
      latency_(network.latency_ns * kNanosecond),
      wire_byte_(wire_byte(network)),
      burst_(network.burst_bytes * wire_byte_),
      cores_(topology) {
  Port rested;
  rested.paid = -burst_;
  out_.assign(static_cast<std::size_t>(hosts_of(topology)), rested);
  in_ = out_;
  for (std::size_t m = 0; m < cores_.machines(); ++m) {
    free_at_.emplace_back(static_cast<std::size_t>(cores_.count(m)), 0);
  }
  ranks_.resize(schedules.size());
  for (std::size_t r = 0; r < schedules.size(); ++r) {
    ranks_[r].schedule = &schedules[r];
    ranks_[r].end = schedules[r].steps.size();
  }
}

Simulated Simulation::run(Picoseconds most) {
  unfinished_ = static_cast<int>(ranks_.size());
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    at(0, What::kRank, static_cast<int>(r));
  }
  Simulated result;
  while (unfinished_ > 0) {
    if (to_come_.empty()) {
      result.ends = false;
      break;
    }
    const Event event = to_come_.top();
    to_come_.pop();
    now_ = event.at;
    if (now_ > most) {
      result.cut_off = true;
      break;
    }
    switch (event.what) {
      case What::kRank:
        go_on(event.index);
        break;
      case What::kSent:
        queue_piece(event);
        break;
      case What::kPortFree:
        send_from(event.index);
        break;
      case What::kHead: {
        const Stream& stream = streams_[static_cast<std::size_t>(event.index)];
        Port& port = in_[static_cast<std::size_t>(topology_.host[static_cast<std::size_t>(stream.to)])];
        at(pass(port, event.bytes), What::kArrival, event.index, event.bytes, event.last);
        break;
      }
      case What::kArrival:
        arrive(event);
        break;
    }
  }
  result.time = now_;
  for (const auto* ports : {&out_, &in_}) {
    for (const Port& port : *ports) {
      result.wire = std::max(result.wire, port.busy);
    }
  }
  result.processor = slowest_ >= 0 ? ranks_[static_cast<std::size_t>(slowest_)].works : 0;
  return result;
}

void Simulation::at(Picoseconds when, What what, int index, std::int64_t bytes, bool last) {
  to_come_.push({when, events_++, what, last, index, bytes});
}

// A port that has paused may be ahead of its rate by a burst: a token bucket.
Picoseconds Simulation::pass(Port& port, std::int64_t bytes) const {
  const Picoseconds time = bytes * wire_byte_;
  port.busy += time;
  port.paid = std::max(port.paid, now_ - burst_) + time;
  return std::max(now_, port.paid);
}

Picoseconds Simulation::work(int rank, Picoseconds time) {
  return occupy(rank, cores_.slowed(cores_.machine_of(rank), time));
}

Picoseconds Simulation::occupy(int rank, Picoseconds time) {
  auto& cores = free_at_[cores_.machine_of(rank)];
  Picoseconds& core = *std::min_element(cores.begin(), cores.end());
  core = std::max(core, now_) + time;
  ranks_[static_cast<std::size_t>(rank)].works += time;
  at(core, What::kRank, rank);
  return core;
}

void Simulation::go_on(int rank) {
  Rank& r = ranks_[static_cast<std::size_t>(rank)];
  while (r.next < r.end || r.working) {
    if (r.working) {
      const Step& done = r.schedule->steps[r.next];
      if (done.kind == StepKind::kSend && r.sent < done.length) {
        send_piece(rank, done);
        return;
      }
      r.working = false;
      leave(rank, done);
      continue;
    }
    const Step& step = r.schedule->steps[r.next];
    const bool ready = sees(r, step) && (step.kind != StepKind::kAwait || r.missing == 0);
    if (!ready) {
      if (!r.inbox.empty()) {
        take_in(rank);
      } else {
        r.blocked = true;
      }
      return;
    }
    if (begin(rank, step)) {
      r.working = true;
      return;
    }
    leave(rank, step);
  }
  --unfinished_;
  slowest_ = rank;
}

// Whether the step takes time on a core, which then has been given to it.
bool Simulation::begin(int rank, const Step& step) {
  Rank& r = ranks_[static_cast<std::size_t>(rank)];
  switch (step.kind) {
    case StepKind::kCopy:
    case StepKind::kRead:
      work(rank, costs_.step + step.length * costs_.copy_byte * step.destinations.count);
      return true;
    case StepKind::kReduce:
      work(rank, costs_.step + step.length * costs_.reduce_byte * step.sources.count);
      return true;
    case StepKind::kSend:
      r.sent = 0;
      send_piece(rank, step);
      return true;
    case StepKind::kReceive:
    case StepKind::kReceiveReduce: {
      Stream& stream = streams_[static_cast<std::size_t>(stream_of(step.peer, rank))];
      stream.reduces.push_back(step.kind == StepKind::kReceiveReduce);
      r.missing += static_cast<std::int64_t>(stream.reduces.size()) > stream.arrived ? 1 : 0;
      return false;
    }
    case StepKind::kLoop:
      r.loop = r.next;
      r.iteration = 0;
      return false;
    case StepKind::kChoose:
      r.end = static_cast<std::size_t>(step.length);
      return false;
    default:
      return false;
  }
}

void Simulation::leave(int rank, const Step& step) {
  Rank& r = ranks_[static_cast<std::size_t>(rank)];
  for (const FlagRef& flag : r.schedule->signals(step)) {
    flags_.insert(key(r, flag));
  }
  if (step.signals.count > 0) {
    for (std::size_t other = 0; other < ranks_.size(); ++other) {
      Rank& o = ranks_[other];
      if (o.blocked && topology_.mapped(rank, static_cast<int>(other)) && o.schedule->steps[o.next].waits.count > 0 &&
          sees(o, o.schedule->steps[o.next])) {
        resume(static_cast<int>(other), kSeen);
      }
    }
  }
  if (step.kind == StepKind::kEndLoop && ++r.iteration < r.schedule->steps[r.loop].length) {
    r.next = r.loop + 1;
    return;
  }
  r.iteration = step.kind == StepKind::kEndLoop ? 0 : r.iteration;
  ++r.next;
}

bool Simulation::sees(const Rank& rank, const Step& step) const {
  const auto flags = rank.schedule->waits(step);
  return std::all_of(flags.begin(), flags.end(), [&](const FlagRef& flag) { return flags_.contains(key(rank, flag)); });
}

std::uint64_t Simulation::key(const Rank& rank, const FlagRef& flag) {
  const std::uint64_t chunk =
      flag.flag == kHeaderFlag ? 0 : static_cast<std::uint64_t>(std::int64_t{flag.chunk} + rank.iteration);
  return chunk << 24 | std::uint64_t{flag.flag} << 16 | flag.member;
}

void Simulation::resume(int rank, Picoseconds seen) {
  ranks_[static_cast<std::size_t>(rank)].blocked = false;
  occupy(rank, seen + (cores_.crowded(cores_.machine_of(rank)) ? costs_.resume_crowded : costs_.resume));
}

int Simulation::stream_of(int from, int to) {
  const std::uint64_t pair = static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint64_t>(to);
  const auto [found, is_new] = stream_of_pair_.try_emplace(pair, static_cast<int>(streams_.size()));
  if (is_new) {
    Stream& stream = streams_.emplace_back();
    stream.from = from;
    stream.to = to;
    stream.mapped = topology_.mapped(from, to);
  }
  return found->second;
}

void Simulation::send_piece(int rank, const Step& step) {
  Rank& r = ranks_[static_cast<std::size_t>(rank)];
  const bool folded = fold_.symmetry != Symmetry::kNone;
  const int index =
      folded ? stream_of(fold_.sender_of(rank, step.peer), step.peer % fold_.local) : stream_of(rank, step.peer);
  const bool mapped = streams_[static_cast<std::size_t>(index)].mapped;
  const std::int64_t bytes = std::min(std::max(kPiece, step.length / kMostPieces), step.length - r.sent);
  const Picoseconds message = r.sent > 0 ? 0 : mapped ? costs_.mapped_message : costs_.send_message;
  r.sent += bytes;
  const Picoseconds done = work(rank, message + bytes * (mapped ? costs_.mapped_byte : costs_.send_byte));
  at(done, mapped ? What::kArrival : What::kSent, index, bytes, r.sent == step.length);
}

// The rank's thread is done with a piece, which waits for the port of its host.
void Simulation::queue_piece(const Event& event) {
  Stream& stream = streams_[static_cast<std::size_t>(event.index)];
  stream.pieces.push_back({frame_bytes(event.bytes), event.last});
  const int host = fold_.symmetry != Symmetry::kNone ? 0 : topology_.host[static_cast<std::size_t>(stream.from)];
  Port& port = out_[static_cast<std::size_t>(host)];
  if (!stream.queued) {
    stream.queued = true;
    port.streams.push_back(event.index);
  }
  if (!port.sending) {
    send_from(host);
  }
}

void Simulation::send_from(int host) {
  Port& port = out_[static_cast<std::size_t>(host)];
  port.sending = !port.streams.empty();
  if (!port.sending) {
    return;
  }
  const int index = port.streams.front();
  port.streams.pop_front();
  Stream& stream = streams_[static_cast<std::size_t>(index)];
  const Piece piece = stream.pieces.front();
  stream.pieces.pop_front();
  stream.queued = !stream.pieces.empty();
  if (stream.queued) {
    port.streams.push_back(index);
  }
  const Picoseconds end = pass(port, piece.bytes);
  at(end, What::kPortFree, host);
  // The other port is asked early enough to pass the bytes as they come, but not while this one still holds them.
  const Picoseconds ahead = std::max<Picoseconds>(0, piece.bytes * wire_byte_ - burst_);
  at(end - ahead + latency_, What::kHead, index, piece.bytes, piece.last);
}

void Simulation::arrive(const Event& event) {
  const Stream& stream = streams_[static_cast<std::size_t>(event.index)];
  Rank& r = ranks_[static_cast<std::size_t>(stream.to)];
  r.inbox.push_back(event);
  if (r.blocked) {
    resume(stream.to, 0);
  }
}

// The rank, which has nothing else to do, receives all that is there.
void Simulation::take_in(int rank) {
  Rank& r = ranks_[static_cast<std::size_t>(rank)];
  Picoseconds time = 0;
  for (const Event& piece : r.inbox) {
    Stream& stream = streams_[static_cast<std::size_t>(piece.index)];
    const auto message = static_cast<std::size_t>(stream.arrived);
    const bool posted = message < stream.reduces.size();
    time += piece.bytes * (stream.mapped ? costs_.mapped_byte : costs_.receive_byte);
    time += posted && stream.reduces[message] ? piece.bytes * costs_.reduce_byte : 0;
    if (piece.last) {
      time += stream.mapped ? costs_.mapped_message : costs_.receive_message;
      ++stream.arrived;
      r.missing -= posted ? 1 : 0;
    }
  }
  r.inbox.clear();
  work(rank, time);
}

}  // namespace collectives
