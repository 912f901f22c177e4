// What a TCP link has yet to write: bytes that are packed here, then the rest of one frame, whose payload is written
// from where the caller has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transports/tcp/connection.h"
#include "transports/tcp/stream.h"
#include "transports/transport.h"

namespace collectives::tcp {

// Payloads up to this size are copied behind their header: that is cheaper than another entry for the kernel, it lets
// many small frames go out with one call, and the request is done at once.
inline constexpr std::int64_t kPackBytes = 2048;

class Output {
 public:
  // Counts all payload in `bytes_sent`.
  Output(Connection& connection, std::int64_t& bytes_sent);

  bool empty() const { return head_ == packed_.size() && frame_left_ == 0; }
  std::size_t packed_bytes() const { return packed_.size(); }
  // The socket did not accept everything.
  bool is_blocked() const { return blocked_; }
  void set_blocked(bool blocked) { blocked_ = blocked; }

  // Forgets what is packed, and has been written.
  void clear() {
    packed_.clear();
    head_ = 0;
  }
  void append(const void* data, std::size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(data);
    packed_.insert(packed_.end(), begin, begin + bytes);
  }
  // The payload of the header that was appended last: the next bytes of the front request. Short ones are packed, and
  // then the frame is over; true where it is not.
  bool append_payload(TcpStream& s, std::int64_t bytes);
  void begin_frame(TcpStream& s, SendRequest& request, std::int64_t bytes);
  // Packs what is left of a frame of the stream, so that nothing refers to its request any more.
  void let_go(const TcpStream& s) {
    if (frame_left_ > 0 && frame_stream_ == &s) {
      pack_frame();
    }
  }

  // What one system call has written.
  struct Written {
    bool any = false;
    bool all = false;                // the socket accepted everything that was offered
    TcpStream* of_stream = nullptr;  // the one of which payload that was not packed has left
  };
  Written write_once();

 private:
  void pack_frame();
  void count_sent(std::int64_t bytes) {
    bytes_sent_ += bytes;
    frame_stream_->stream->bytes_sent += bytes;
  }

  Connection& connection_;
  std::int64_t& bytes_sent_;
  std::vector<std::byte> packed_;  // from head_ on
  std::size_t head_ = 0;
  TcpStream* frame_stream_ = nullptr;
  SendRequest* frame_request_ = nullptr;
  std::int64_t frame_left_ = 0;
  bool blocked_ = false;
};

}  // namespace collectives::tcp
