// The sending half of the TCP link.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transports/tcp/link.h"

namespace collectives {
namespace {

using wire::FrameType;

constexpr std::size_t kOutBytes = 32 << 10;         // packed before a call
constexpr std::int64_t kMaxFrameShared = 64 << 10;  // when several streams have something to send
// A frame shorter than this waits for more credit, unless it is the end of its message.
constexpr std::int64_t kLeastFrame = 16 << 10;
constexpr std::int64_t kCreditBytes = wire::kWindowBytes / 4;
constexpr int kVectors = 64;
constexpr int kRounds = 4;
constexpr std::uint32_t kTakenStep = wire::kStreamsAhead / 4;

// A receiver that has not spoken yet does so when it expects more than half the eager limit; so a sender that holds
// back less than kLeastFrame bytes of the eager limit has always more than that in flight.
static_assert(wire::kEagerMessageBytes - kLeastFrame > wire::kEagerMessageBytes / 2);
static_assert(wire::kEagerBytes >= wire::kEagerMessageBytes);
static_assert(wire::kWindowBytes - kLeastFrame > 2 * kCreditBytes);

}  // namespace

// The first frame of a stream must wait while the peer is too far behind, unless the peer has opened the stream.
bool TcpLink::may_speak(const TcpStream& s) const {
  if (s.started || s.heard) {
    return true;
  }
  const std::uint32_t limit = !s.is_message()           ? wire::kMaxUnknownStreams
                              : s.stream->sends.empty() ? wire::kReceivesAhead
                                                        : wire::kStreamsAhead;
  return streams_started_ - peer_taken_ < limit;
}

// Whether the peer, as far as it knows, must not begin to send another message before it is asked for it.
bool TcpLink::peer_is_held_back() const {
  return unknown_ + (streams_taken_ - taken_announced_) >= wire::kStreamsAhead;
}

bool TcpLink::credit_due(const TcpStream& s) const {
  return may_speak(s) &&
         (wants_to_speak(s) || (!s.started && !s.heard && !s.stream->receives.empty() && peer_is_held_back()));
}

// Because of its own bytes, and without a frame of data.
bool TcpLink::wants_to_speak(const TcpStream& s) const {
  if (s.started) {
    // Without receives, which may be the end of the stream, credit is less urgent.
    return s.consumed - s.announced >= (s.stream->receives.empty() ? 2 * kCreditBytes : kCreditBytes);
  }
  if (s.announce || s.received > wire::eager_bytes(s.key.communicator) / 2) {
    return true;
  }
  std::int64_t expected = s.consumed;
  for (const ReceiveRequest* r : s.stream->receives) {
    expected += r->remaining;
    if (expected > wire::eager_bytes(s.key.communicator) / 2) {
      return true;
    }
  }
  return false;
}

// How many bytes of its first request the stream may send now. One that may begin with little only, because much is
// ahead, may have to wait until its receiver has been idle for a while and says that it is there.
std::int64_t TcpLink::sendable(const TcpStream& s) const {
  const std::int64_t remaining = s.stream->sends.front()->remaining;
  const std::int64_t limit = s.heard                      ? wire::kWindowBytes
                             : ahead_ < wire::kAheadBytes ? wire::eager_bytes(s.key.communicator)
                                                          : wire::kEagerMessageBytes;
  const std::int64_t window = limit - (s.sent - s.acked);
  if (window >= remaining) {
    return remaining;
  }
  return window < kLeastFrame ? 0 : window;
}

void TcpLink::append_bytes(const void* data, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  out_.insert(out_.end(), begin, begin + bytes);
}

void TcpLink::append_frame(FrameType type, TcpStream* s, std::int64_t length) {
  wire::FrameHeader header;
  header.type = type;
  header.length = static_cast<std::uint32_t>(length);
  header.streams_taken = taken_announced_ = streams_taken_;
  if (s != nullptr) {
    if (!s->started) {
      s->started = true;
      header.first = true;
      ++streams_started_;
    }
    header.communicator = s->key.communicator;
    header.sequence = s->key.sequence;
    header.signature = s->stream->signature;
    header.credit = static_cast<std::uint64_t>(s->consumed);
    s->announced = s->consumed;
    s->sent += length;
    ahead_ += s->heard ? 0 : length;
  }
  std::byte encoded[wire::kHeaderBytes];
  wire::encode(header, encoded);
  append_bytes(encoded, sizeof(encoded));
}

// Collects the next output. Called when there is none.
bool TcpLink::fill() {
  out_.clear();
  out_head_ = 0;
  for (; !reports_.empty(); reports_.pop_front()) {
    append_frame(FrameType::kAbort, nullptr, static_cast<std::int64_t>(reports_.front().size()));
    append_bytes(reports_.front().data(), reports_.front().size());
  }
  if (messages_ > 0) [[unlikely]] {
    fill_credits();
  }
  std::size_t senders = sending_;
  for (TcpStream* s : open_) {
    const bool sends = !s->stream->sends.empty();
    senders += sends ? 1 : 0;
    // A frame of data tells the credit as well; but one that cannot go must not hold the credit back.
    if (credit_due(*s) && !(sends && (s->stream->sends.front()->token || sendable(*s) > 0))) {
      append_frame(FrameType::kCredit, s, 0);
    }
  }
  bool big = false;
  if (senders > 0) {
    while (out_.size() < kOutBytes && !big && fill_turn(senders > 1 ? kMaxFrameShared : wire::kMaxFrameBytes, &big)) {
    }
  }
  if (out_.empty() && streams_taken_ - taken_announced_ >= kTakenStep) {
    append_frame(FrameType::kStreams, nullptr, 0);
  }
  return !out_.empty();
}

// Of messages.
void TcpLink::fill_credits() {
  if (peer_is_held_back()) {
    announce_quiet();
  }
  while (TcpStream* s = due_.front()) {
    give_credit(*s);
  }
  for (TcpStream* s = waiting_.front(); s != nullptr && may_speak(*s); s = waiting_.front()) {
    give_credit(*s);
  }
}

void TcpLink::give_credit(TcpStream& s) {
  append_frame(FrameType::kCredit, &s, 0);
  review(s);
}

// One frame of every stream that can send, beginning where the last turn ended; stops at one too big to pack.
bool TcpLink::fill_turn(std::int64_t max_frame, bool* big) {
  messages_first_ = !messages_first_;
  bool any = messages_first_ && fill_messages(max_frame, big);
  any = (!*big && fill_collectives(max_frame, big)) || any;
  return (!messages_first_ && !*big && fill_messages(max_frame, big)) || any;
}

bool TcpLink::fill_collectives(std::int64_t max_frame, bool* big) {
  bool any = false;
  const std::size_t count = open_.size();
  const std::size_t first = turn_;
  for (std::size_t i = 0; i < count && out_.size() < kOutBytes; ++i) {
    const std::size_t index = (first + i) % count;
    TcpStream& s = *open_[index];
    auto& sends = s.stream->sends;
    if (sends.empty() || !may_speak(s)) {
      continue;
    }
    SendRequest& r = *sends.front();
    if (r.token) {
      append_frame(FrameType::kToken, &s, 0);
    } else {
      const std::int64_t bytes = std::min(sendable(s), max_frame);
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
bool TcpLink::append_data(TcpStream& s, std::int64_t bytes) {
  append_frame(FrameType::kData, &s, bytes);
  frame_stream_ = &s;
  frame_request_ = s.stream->sends.front();
  frame_left_ = bytes;
  if (bytes <= kPackBytes) {
    finish_frame_from_copy();
  }
  return bytes > kPackBytes;
}

void TcpLink::end_message_send(TcpStream& s) {
  s.stream->end_send();
  sending_ -= s.stream->sends.empty() ? 1 : 0;
}

// The next message to be sent, after `ready` of those that are ready; nullptr: there is none.
TcpStream* TcpLink::next_message(std::size_t ready) const {
  if (ready > 0) {
    return ready_.front();
  }
  TcpStream* const held = held_.front();
  return held != nullptr && may_speak(*held) ? held : nullptr;
}

bool TcpLink::fill_messages(std::int64_t max_frame, bool* big) {
  bool any = false;
  for (std::size_t ready = ready_.size(); out_.size() < kOutBytes; ready -= ready > 0 ? 1 : 0) {
    TcpStream* const s = next_message(ready);
    if (s == nullptr) {
      break;
    }
    if (!may_speak(*s) || (!s->started && !s->heard && !held_.empty() && !held_.has(*s))) {
      held_.put(*s);  // messages begin in the order in which they were opened
      continue;
    }
    SendRequest& r = *s->stream->sends.front();
    ready_.put(*s);  // behind the others
    if (r.token) {
      append_frame(FrameType::kToken, s, 0);
    } else {
      const std::int64_t bytes = std::min(sendable(*s), max_frame);
      if (bytes > 0 && append_data(*s, bytes)) {
        review(*s);
        *big = true;
        return true;
      }
      any = any || bytes > 0;
    }
    if (r.token || r.remaining == 0) {
      any = true;
      end_message_send(*s);
    }
    review(*s);
  }
  return any;
}

// Copies the rest of the frame in progress, so that nothing refers to its request any more.
void TcpLink::finish_frame_from_copy() {
  SendRequest& r = *frame_request_;
  r.source.seek(r.source.offset());
  while (frame_left_ > 0) {
    const Span piece = r.source.piece(frame_left_);
    append_bytes(piece.data, static_cast<std::size_t>(piece.bytes));
    r.source.advance(piece.bytes);
    r.remaining -= piece.bytes;
    frame_left_ -= piece.bytes;
    count_sent(piece.bytes);
  }
}

bool TcpLink::write_some() {
  bool moved = false;
  for (int round = 0; round < kRounds && socket_error_ == 0; ++round) {
    const bool fresh = !has_output();
    if (fresh) {
      if (!fill()) {
        blocked_ = false;
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

bool TcpLink::sends_left() const {
  return sending_ > 0 ||
         std::any_of(open_.begin(), open_.end(), [](const TcpStream* s) { return !s->stream->sends.empty(); });
}

// Whether write_some() may find anything to do after what has just arrived.
bool TcpLink::may_answer() const {
  return has_output() || streams_taken_ - taken_announced_ >= kTakenStep || !ready_.empty() || !due_.empty() ||
         (!held_.empty() && may_speak(*held_.front())) || (!waiting_.empty() && may_speak(*waiting_.front())) ||
         std::any_of(open_.begin(), open_.end(),
                     [this](const TcpStream* s) { return !s->stream->sends.empty() || credit_due(*s); });
}

// As send(2), but not interrupted.
ssize_t TcpLink::offer(iovec* vectors, int count) const {
  msghdr message{};
  message.msg_iov = vectors;
  message.msg_iovlen = static_cast<std::size_t>(count);
  ssize_t n;
  do {
    n = count == 1 ? ::send(fd_, vectors[0].iov_base, vectors[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT)
                   : ::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  return n;
}

// One system call; true when the socket took everything that was offered.
bool TcpLink::write_once(bool* moved) {
  iovec vectors[kVectors];
  int count = 0;
  std::size_t offered = 0;
  if (out_head_ < out_.size()) {
    vectors[count++] = {out_.data() + out_head_, out_.size() - out_head_};
    offered = out_.size() - out_head_;
  }
  if (frame_left_ > 0) {
    SpanCursor cursor = frame_request_->source;
    cursor.seek(cursor.offset());  // past empty spans
    for (std::int64_t left = frame_left_; left > 0 && count < kVectors;) {
      const Span piece = cursor.piece(left);
      vectors[count++] = {piece.data, static_cast<std::size_t>(piece.bytes)};
      offered += static_cast<std::size_t>(piece.bytes);
      left -= piece.bytes;
      cursor.advance(piece.bytes);
    }
  }
  const ssize_t n = offer(vectors, count);
  if (n < 0) {
    blocked_ = errno == EAGAIN || errno == EWOULDBLOCK;
    if (!blocked_) {
      socket_error_ = errno;  // what the peer sent before is still read; read_some() reports the failure
    }
    return false;
  }
  *moved = true;
  const std::size_t from_out = std::min(static_cast<std::size_t>(n), out_.size() - out_head_);
  out_head_ += from_out;
  const std::int64_t from_frame = n - static_cast<std::int64_t>(from_out);
  if (from_frame > 0) {
    SendRequest& r = *frame_request_;
    r.source.advance(from_frame);
    r.remaining -= from_frame;
    frame_left_ -= from_frame;
    count_sent(from_frame);
    if (r.remaining == 0) {
      frame_stream_->is_message() ? end_message_send(*frame_stream_) : frame_stream_->stream->end_send();
    }
    if (frame_stream_->is_message()) {
      review(*frame_stream_);
    }
  }
  blocked_ = static_cast<std::size_t>(n) < offered;
  return !blocked_;
}

}  // namespace collectives
