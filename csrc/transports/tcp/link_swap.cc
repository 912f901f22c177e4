// The short way of the TCP link: one message each way on a link that has nothing else to do. On the wire it is a stream
// like any other, so each rank takes this way or the usual one as it stands.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cpu/spin.h"
#include "transports/tcp/link.h"

namespace collectives {

// No stream, nothing to be sent, told or read on. That there is no event, and none can come with what take_swap()
// accepts, is what the engine relies on when it hears no link after a swap.
bool TcpLink::is_idle() const {
  return !down_ && !bye_received_ && socket_error_ == 0 && !is_open() && unknown_ == 0 && !has_output() &&
         reports_.empty() && events_.empty() && payload_left_ == 0;
}

bool TcpLink::begin_swap(const Swap& swap) {
  const auto bytes = static_cast<std::size_t>(swap.bytes);
  if (!is_idle() || wire::kHeaderBytes + bytes > sizeof(in_->bytes) ||
      streams_started_ - peer_taken_ >= wire::kMaxUnknownStreams) {
    return false;
  }
  wire::FrameHeader header;
  header.first = true;
  header.communicator = swap.key.communicator;
  header.length = static_cast<std::uint32_t>(bytes);
  header.sequence = swap.key.sequence;
  header.signature = swap.signature;
  header.streams_taken = streams_taken_;
  alignas(64) std::byte frame[wire::kHeaderBytes + kPackBytes];
  wire::encode(header, frame);
  iovec vectors[2] = {{frame, wire::kHeaderBytes}, {const_cast<std::byte*>(swap.data), bytes}};
  const bool packed = swap.bytes <= kPackBytes;
  if (packed) {
    std::memcpy(frame + wire::kHeaderBytes, swap.data, bytes);
    vectors[0].iov_len += bytes;
  }
  const ssize_t n = offer(vectors, packed ? 1 : 2);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    return false;
  }
  if (n < 0) {
    socket_error_ = errno;  // the kernel tells it only once; what the peer has sent before may be all that is needed
  }
  taken_announced_ = streams_taken_;
  ++streams_started_;
  const std::size_t sent = n > 0 ? static_cast<std::size_t>(n) : 0;
  if (sent < wire::kHeaderBytes + bytes) {
    out_.clear();
    out_head_ = 0;
    append_bytes(frame + std::min(sent, vectors[0].iov_len), vectors[0].iov_len - std::min(sent, vectors[0].iov_len));
    swap_left_ = packed ? 0 : static_cast<std::int64_t>(std::min(wire::kHeaderBytes + bytes - sent, bytes));
    blocked_ = true;
  }
  bytes_sent += swap.bytes - swap_left_;
  return true;
}

std::byte* TcpLink::finish_swap(const Swap& swap, int looks) {
  mark_opened(swap.key);
  const bool sent = !has_output() && swap_left_ == 0;
  while (sent && in_bytes_ < wire::kHeaderBytes + static_cast<std::size_t>(swap.bytes)) {
    const ssize_t n = ::recv(fd_, in_->bytes + in_bytes_, sizeof(in_->bytes) - in_bytes_, MSG_DONTWAIT);
    if (n > 0) {
      in_bytes_ += static_cast<std::size_t>(n);
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (looks-- == 0) {
        break;
      }
      relax();
    } else if (n == 0) {
      break;  // which read_some() finds again, after what has come before
    } else if (errno != EINTR) {
      socket_error_ = errno;
      break;
    }
  }
  return sent && take_swap(swap) ? in_->bytes + wire::kHeaderBytes : nullptr;
}

// True when all that has come is the peer's part of the swap: then it counts as a stream that was opened and closed.
bool TcpLink::take_swap(const Swap& swap) {
  wire::FrameHeader& h = frame_;
  std::string error;
  if (in_bytes_ != wire::kHeaderBytes + static_cast<std::size_t>(swap.bytes) || !wire::decode(in_->bytes, &h, &error) ||
      h.type != wire::FrameType::kData || !h.first || h.communicator != swap.key.communicator ||
      h.sequence != swap.key.sequence || h.length != swap.bytes || !(h.signature == swap.signature) ||
      h.credit > static_cast<std::uint64_t>(swap.bytes) || !counts_our_streams(h)) {
    return false;
  }
  peer_taken_ = h.streams_taken;
  note_taken();
  in_bytes_ = 0;
  return true;
}

void TcpLink::open_begun(Stream& stream, const Swap& swap) {
  open(stream);
  TcpStream& s = *open_.back();
  s.started = true;
  s.sent = swap.bytes;
  ahead_ += swap.bytes;
  SendRequest& r = *stream.sends.front();
  r.source.advance(swap.bytes - swap_left_);
  r.remaining = swap_left_;
  stream.bytes_sent = swap.bytes - swap_left_;
  if (r.remaining == 0) {
    stream.end_send();
  } else {
    frame_stream_ = &s;
    frame_request_ = &r;
    frame_left_ = r.remaining;
    swap_left_ = 0;
  }
  parse();  // what has come since, the link does not look at again unless more comes
}

}  // namespace collectives
