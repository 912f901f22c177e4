#include "transports/tcp/output.h"

#include <algorithm>
#include <cerrno>

namespace collectives::tcp {
namespace {

constexpr int kVectors = 64;

}  // namespace

Output::Output(Connection& connection, std::int64_t& bytes_sent) : connection_(connection), bytes_sent_(bytes_sent) {
  packed_.reserve(48 << 10);
}

bool Output::append_payload(TcpStream& s, std::int64_t bytes) {
  begin_frame(s, *s.stream->sends.front(), bytes);
  if (bytes <= kPackBytes) {
    pack_frame();
  }
  return bytes > kPackBytes;
}

void Output::begin_frame(TcpStream& s, SendRequest& request, std::int64_t bytes) {
  frame_stream_ = &s;
  frame_request_ = &request;
  frame_left_ = bytes;
}

void Output::pack_frame() {
  SendRequest& r = *frame_request_;
  r.source.seek(r.source.offset());
  while (frame_left_ > 0) {
    const Span piece = r.source.piece(frame_left_);
    append(piece.data, static_cast<std::size_t>(piece.bytes));
    r.source.advance(piece.bytes);
    r.remaining -= piece.bytes;
    frame_left_ -= piece.bytes;
    count_sent(piece.bytes);
  }
}

Output::Written Output::write_once() {
  iovec vectors[kVectors];
  int count = 0;
  std::size_t offered = 0;
  if (head_ < packed_.size()) {
    vectors[count++] = {packed_.data() + head_, packed_.size() - head_};
    offered = packed_.size() - head_;
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
  const ssize_t n = connection_.send(vectors, count);
  if (n < 0) {
    blocked_ = Connection::would_block();
    if (!blocked_) {
      connection_.keep_error(errno);
    }
    return {};
  }
  Written written{true, static_cast<std::size_t>(n) == offered, nullptr};
  const std::size_t from_packed = std::min(static_cast<std::size_t>(n), packed_.size() - head_);
  head_ += from_packed;
  const std::int64_t from_frame = n - static_cast<std::int64_t>(from_packed);
  if (from_frame > 0) {
    SendRequest& r = *frame_request_;
    r.source.advance(from_frame);
    r.remaining -= from_frame;
    frame_left_ -= from_frame;
    count_sent(from_frame);
    written.of_stream = frame_stream_;
  }
  blocked_ = !written.all;
  return written;
}

}  // namespace collectives::tcp
