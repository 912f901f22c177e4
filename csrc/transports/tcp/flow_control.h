// Flow control of a TCP link: how many streams each rank may begin, and how many bytes of them it may send.
//
// Of every stream a sender has at most eager_bytes() in flight until a frame of the peer on that stream has come (which
// proves that the peer opened it), then kWindowBytes; less when much is ahead already (kAheadBytes). "In flight" means
// not yet consumed: delivered into a posted receive. Every frame of a stream carries how much its sender has consumed,
// so ranks that exchange data need no frames of their own for that; a rank that only receives sends a credit frame per
// kCreditBytes consumed, while it has receives posted. It also sends one, with no data consumed yet, when its receives
// add up to more than half the eager limit, or when the link has been idle for a while: so the peer's window opens
// before the peer runs into the eager limit, and the signatures of two ranks that both only wait for each other still
// meet. Nothing of that happens to short messages.
//
// A receiver never stops reading its socket: what cannot be delivered goes to a stash, which flow control bounds. The
// number of streams that a rank may begin before the peer opens them is bounded in the same way (wire::kStreamsAhead).
// Where the bound may have been reached, receives are made known at once: their streams may always begin.
#pragma once

#include <cstdint>

#include "transports/tcp/stream.h"
#include "transports/tcp/wire.h"

namespace collectives::tcp {

class FlowControl {
 public:
  // The first frame of a stream must wait while the peer is too far behind, unless the peer has opened the stream.
  bool may_start(const TcpStream& s) const {
    if (s.begun()) {
      return true;
    }
    const std::uint32_t limit = !s.is_message()           ? wire::kMaxUnknownStreams
                                : s.stream->sends.empty() ? wire::kReceivesAhead
                                                          : wire::kStreamsAhead;
    return started_ - peer_opened_ < limit;
  }
  // As may_start(), of a collective that has no stream yet.
  bool may_start_sendrecv() const { return started_ - peer_opened_ < wire::kMaxUnknownStreams; }

  // How many bytes of its first request the stream may send now. While much is ahead, a stream may begin with little
  // only; then the rest may wait until the receiver has been idle for a while and announces that it has opened it.
  std::int64_t sendable(const TcpStream& s) const {
    const std::int64_t remaining = s.stream->sends.front()->remaining;
    const std::int64_t limit = s.peer_started               ? wire::kWindowBytes
                               : ahead_ < wire::kAheadBytes ? wire::eager_bytes(s.key.communicator)
                                                            : wire::kEagerMessageBytes;
    const std::int64_t window = limit - (s.sent - s.acked);
    if (window >= remaining) {
      return remaining;
    }
    return window < kLeastFrame ? 0 : window;
  }

  // Whether the stream should send a frame of credit because of its own bytes, when no frame of data carries it.
  static bool wants_credit_frame(const TcpStream& s);
  // Whether it may and should, also because the peer may wait for it.
  bool credit_is_due(const TcpStream& s) const {
    return may_start(s) &&
           (wants_credit_frame(s) || (!s.begun() && !s.stream->receives.empty() && peer_is_held_back()));
  }
  // Whether the peer, as far as it knows, must not begin another message that this rank has not asked for.
  bool peer_is_held_back() const { return unknown_ + (opened_ - opened_announced_) >= wire::kStreamsAhead; }

  // How many bytes of the stream the peer may have sent in all.
  static std::int64_t granted(const TcpStream& s) {
    return s.announced + (s.started ? wire::kWindowBytes : wire::eager_bytes(s.key.communicator));
  }

  // Streams that this rank begins.
  void count_started() { ++started_; }
  void count_sent(TcpStream& s, std::int64_t bytes) {
    s.sent += bytes;
    ahead_ += s.peer_started ? 0 : bytes;
  }
  void count_peer_started(TcpStream& s) {
    s.peer_started = true;
    ahead_ -= s.sent;
  }
  void count_closed(const TcpStream& s) { ahead_ -= s.peer_started ? 0 : s.sent; }
  std::uint32_t started() const { return started_; }
  // How many of our streams the peer has opened, as a frame claims: no more than there are, and no fewer than before.
  bool is_possible_opened(std::uint32_t by_peer) const { return by_peer - peer_opened_ <= started_ - peer_opened_; }
  void set_peer_opened(std::uint32_t by_peer) { peer_opened_ = by_peer; }

  // Streams that the peer begins.
  void count_opened(std::uint32_t streams = 1) { opened_ += streams; }
  std::uint32_t opened() const { return opened_; }
  // For a frame that leaves now.
  std::uint32_t announce_opened() { return opened_announced_ = opened_; }
  bool must_announce_opened() const { return opened_ - opened_announced_ >= kOpenedStep; }

  // Streams that the peer has begun and this rank has not opened, and their bytes.
  std::uint32_t unknown() const { return unknown_; }
  void count_unknown() { ++unknown_; }
  void count_unknown_bytes(std::int64_t bytes) { unknown_bytes_ += bytes; }
  bool too_many_unknown_bytes() const { return unknown_bytes_ > wire::kMaxUnknownBytes; }
  // One of them was opened, or dropped: the peer may begin another instead.
  void count_known(const TcpStream& s) {
    --unknown_;
    unknown_bytes_ -= s.received;
    count_opened();
  }

 private:
  // A frame shorter than this waits for more credit, unless it is the end of its message.
  static constexpr std::int64_t kLeastFrame = 16 << 10;
  static constexpr std::int64_t kCreditBytes = wire::kWindowBytes / 4;
  static constexpr std::uint32_t kOpenedStep = wire::kStreamsAhead / 4;

  // A receiver that has sent nothing yet does so when it expects more than half the eager limit; so a sender that holds
  // back less than kLeastFrame bytes of the eager limit has always more than that in flight.
  static_assert(wire::kEagerMessageBytes - kLeastFrame > wire::kEagerMessageBytes / 2);
  static_assert(wire::kEagerBytes >= wire::kEagerMessageBytes);
  static_assert(wire::kWindowBytes - kLeastFrame > 2 * kCreditBytes);

  std::uint32_t started_ = 0;
  std::uint32_t peer_opened_ = 0;  // of these, opened by the peer
  std::int64_t ahead_ = 0;         // bytes sent on streams of which no frame of the peer has come
  std::uint32_t opened_ = 0;       // streams begun by the peer and opened here
  std::uint32_t opened_announced_ = 0;
  std::uint32_t unknown_ = 0;
  std::int64_t unknown_bytes_ = 0;  // declared by the peer
};

}  // namespace collectives::tcp
