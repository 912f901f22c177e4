#include "transports/tcp/short_sendrecv.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "cpu/spin.h"

namespace collectives::tcp {

bool ShortSendRecv::begin(const SendRecv& sendrecv) {
  const auto bytes = static_cast<std::size_t>(sendrecv.bytes);
  if (wire::kHeaderBytes + bytes > Input::kBytes || !flow_.may_start_sendrecv()) {
    return false;
  }
  wire::FrameHeader header;
  header.first = true;
  header.communicator = sendrecv.key.communicator;
  header.length = static_cast<std::uint32_t>(bytes);
  header.sequence = sendrecv.key.sequence;
  header.signature = sendrecv.signature;
  header.streams_opened = flow_.opened();
  alignas(64) std::byte frame[wire::kHeaderBytes + kPackBytes];
  wire::encode(header, frame);
  iovec vectors[2] = {{frame, wire::kHeaderBytes}, {const_cast<std::byte*>(sendrecv.data), bytes}};
  const bool packed = sendrecv.bytes <= kPackBytes;
  if (packed) {
    std::memcpy(frame + wire::kHeaderBytes, sendrecv.data, bytes);
    vectors[0].iov_len += bytes;
  }
  const ssize_t n = connection_.send(vectors, packed ? 1 : 2);
  if (n < 0 && Connection::would_block()) {
    return false;
  }
  if (n < 0) {
    connection_.keep_error(errno);
  }
  flow_.announce_opened();
  flow_.count_started();
  const std::size_t sent = n > 0 ? static_cast<std::size_t>(n) : 0;
  if (sent < wire::kHeaderBytes + bytes) {
    const std::size_t gone = std::min(sent, vectors[0].iov_len);
    output_.clear();
    output_.append(frame + gone, vectors[0].iov_len - gone);
    output_.set_blocked(true);
    left_ = packed ? 0 : static_cast<std::int64_t>(std::min(wire::kHeaderBytes + bytes - sent, bytes));
  }
  return true;
}

std::byte* ShortSendRecv::finish(const SendRecv& sendrecv, int looks) {
  streams_.mark_opened(sendrecv.key);
  const bool sent = output_.empty() && left_ == 0;
  std::byte* const data = input_.data();
  while (sent && input_.used < wire::kHeaderBytes + static_cast<std::size_t>(sendrecv.bytes)) {
    const ssize_t n = connection_.receive(data + input_.used, Input::kBytes - input_.used);
    if (n > 0) {
      input_.used += static_cast<std::size_t>(n);
    } else if (n < 0 && Connection::would_block()) {
      if (looks-- == 0) {
        break;
      }
      relax();
    } else if (n == 0) {
      break;  // the receiver finds the end of the connection again, after what has come before
    } else if (errno != EINTR) {
      connection_.keep_error(errno);
      break;
    }
  }
  return sent && accept(sendrecv) ? data + wire::kHeaderBytes : nullptr;
}

// True when all that has come is the peer's part of the sendrecv: then it counts as a stream that was opened and
// closed.
bool ShortSendRecv::accept(const SendRecv& sendrecv) {
  wire::FrameHeader& h = peer_header_;
  std::string error;
  if (input_.used != wire::kHeaderBytes + static_cast<std::size_t>(sendrecv.bytes) ||
      !wire::decode(input_.data(), &h, &error) || h.type != wire::FrameType::kData || !h.first ||
      h.communicator != sendrecv.key.communicator || h.sequence != sendrecv.key.sequence ||
      h.length != sendrecv.bytes || !(h.signature == sendrecv.signature) ||
      h.credit > static_cast<std::uint64_t>(sendrecv.bytes) || !flow_.is_possible_opened(h.streams_opened)) {
    return false;
  }
  flow_.set_peer_opened(h.streams_opened);
  flow_.count_opened();
  input_.used = 0;
  return true;
}

void ShortSendRecv::continue_as(TcpStream& s, const SendRecv& sendrecv) {
  Stream& stream = *s.stream;
  s.started = true;
  flow_.count_sent(s, sendrecv.bytes);
  SendRequest& r = *stream.sends.front();
  r.source.advance(sent(sendrecv));
  r.remaining = left_;
  stream.bytes_sent = sent(sendrecv);
  if (r.remaining == 0) {
    stream.end_send();
  } else {
    output_.begin_frame(s, r, left_);
    left_ = 0;
  }
}

}  // namespace collectives::tcp
