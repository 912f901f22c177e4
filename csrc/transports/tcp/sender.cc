#include "transports/tcp/sender.h"

#include <algorithm>
#include <vector>

namespace collectives::tcp {
namespace {

using wire::FrameType;

constexpr std::size_t kOutBytes = 32 << 10;         // packed before a call
constexpr std::int64_t kMaxFrameShared = 64 << 10;  // when several streams have something to send
constexpr int kRounds = 4;

}  // namespace

void Sender::append_header(FrameType type, TcpStream* s, std::int64_t length) {
  wire::FrameHeader header;
  header.type = type;
  header.length = static_cast<std::uint32_t>(length);
  header.streams_opened = flow_.announce_opened();
  if (s != nullptr) {
    if (!s->started) {
      s->started = true;
      header.first = true;
      flow_.count_started();
    }
    header.communicator = s->key.communicator;
    header.sequence = s->key.sequence;
    header.signature = s->stream->signature;
    header.credit = static_cast<std::uint64_t>(s->consumed);
    s->announced = s->consumed;
    flow_.count_sent(*s, length);
  }
  std::byte encoded[wire::kHeaderBytes];
  wire::encode(header, encoded);
  output_.append(encoded, sizeof(encoded));
}

// Collects the next output. Called when there is none.
bool Sender::fill() {
  output_.clear();
  for (; !reports_.empty(); reports_.pop_front()) {
    append_header(FrameType::kAbort, nullptr, static_cast<std::int64_t>(reports_.front().size()));
    output_.append(reports_.front().data(), reports_.front().size());
  }
  if (messages_.any()) [[unlikely]] {
    fill_credits();
  }
  std::size_t senders = messages_.sending();
  for (TcpStream* s : streams_.collectives()) {
    const bool sends = !s->stream->sends.empty();
    senders += sends ? 1 : 0;
    // A frame of data carries the credit, too; but one that cannot go must not hold the credit back.
    if (flow_.credit_is_due(*s) && !(sends && (s->stream->sends.front()->token || flow_.sendable(*s) > 0))) {
      append_header(FrameType::kCredit, s, 0);
    }
  }
  bool big = false;
  if (senders > 0) {
    while (output_.packed_bytes() < kOutBytes && !big &&
           fill_turn(senders > 1 ? kMaxFrameShared : wire::kMaxFrameBytes, &big)) {
    }
  }
  if (output_.packed_bytes() == 0 && flow_.must_announce_opened()) {
    append_header(FrameType::kStreams, nullptr, 0);
  }
  return output_.packed_bytes() > 0;
}

// Of messages.
void Sender::fill_credits() {
  if (flow_.peer_is_held_back()) {
    messages_.announce_quiet();
  }
  while (TcpStream* s = messages_.next_credit()) {
    append_header(FrameType::kCredit, s, 0);
    messages_.review(*s);
  }
}

// One frame of every stream that can send, beginning where the last turn ended; stops at one too big to pack.
bool Sender::fill_turn(std::int64_t max_frame, bool* big) {
  messages_first_ = !messages_first_;
  bool any = messages_first_ && fill_messages(max_frame, big);
  any = (!*big && fill_collectives(max_frame, big)) || any;
  return (!messages_first_ && !*big && fill_messages(max_frame, big)) || any;
}

bool Sender::fill_collectives(std::int64_t max_frame, bool* big) {
  bool any = false;
  const std::vector<TcpStream*>& open = streams_.collectives();
  const std::size_t count = open.size();
  const std::size_t first = turn_;
  for (std::size_t i = 0; i < count && output_.packed_bytes() < kOutBytes; ++i) {
    const std::size_t index = (first + i) % count;
    TcpStream& s = *open[index];
    auto& sends = s.stream->sends;
    if (sends.empty() || !flow_.may_start(s)) {
      continue;
    }
    SendRequest& r = *sends.front();
    if (r.token) {
      append_header(FrameType::kToken, &s, 0);
    } else {
      const std::int64_t bytes = std::min(flow_.sendable(s), max_frame);
      if (bytes <= 0) {
        continue;
      }
      turn_ = index + 1;
      if (append_data(s, bytes)) {
        *big = true;
        return true;
      }
    }
    any = true;
    turn_ = index + 1;
    if (r.token || r.remaining == 0) {
      s.stream->end_send();
    }
  }
  return any;
}

// A frame of the first request. True when it is too big to pack.
bool Sender::append_data(TcpStream& s, std::int64_t bytes) {
  append_header(FrameType::kData, &s, bytes);
  return output_.append_payload(s, bytes);
}

bool Sender::fill_messages(std::int64_t max_frame, bool* big) {
  bool any = false;
  for (std::size_t ready = messages_.ready(); output_.packed_bytes() < kOutBytes; ready -= ready > 0 ? 1 : 0) {
    TcpStream* const s = messages_.next(ready);
    if (s == nullptr) {
      break;
    }
    if (messages_.must_hold(*s)) {
      messages_.hold(*s);
      continue;
    }
    SendRequest& r = *s->stream->sends.front();
    messages_.put_behind(*s);
    if (r.token) {
      append_header(FrameType::kToken, s, 0);
    } else {
      const std::int64_t bytes = std::min(flow_.sendable(*s), max_frame);
      if (bytes > 0 && append_data(*s, bytes)) {
        messages_.review(*s);
        *big = true;
        return true;
      }
      any = any || bytes > 0;
    }
    if (r.token || r.remaining == 0) {
      any = true;
      messages_.end_send(*s);
    }
    messages_.review(*s);
  }
  return any;
}

bool Sender::write_some() {
  bool moved = false;
  for (int round = 0; round < kRounds && connection_.error() == 0; ++round) {
    const bool fresh = output_.empty();
    if (fresh) {
      if (!fill()) {
        output_.set_blocked(false);
        break;
      }
      moved = true;  // packed requests are done
    }
    // What fill() has collected is all that is due, but for requests that did not fit.
    if (!write_once(&moved) || (fresh && !sends_left())) {
      break;
    }
  }
  return moved;
}

// One system call; true when the socket accepted everything that was offered.
bool Sender::write_once(bool* moved) {
  const Output::Written written = output_.write_once();
  *moved |= written.any;
  if (TcpStream* s = written.of_stream; s != nullptr) {
    if (s->stream->sends.front()->remaining == 0) {
      s->is_message() ? messages_.end_send(*s) : s->stream->end_send();
    }
    if (s->is_message()) {
      messages_.review(*s);
    }
  }
  return written.all;
}

bool Sender::may_answer() const {
  return !output_.empty() || flow_.must_announce_opened() || messages_.may_send() ||
         std::any_of(streams_.collectives().begin(), streams_.collectives().end(),
                     [this](const TcpStream* s) { return !s->stream->sends.empty() || flow_.credit_is_due(*s); });
}

}  // namespace collectives::tcp
