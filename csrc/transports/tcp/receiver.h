// The receiving half of a TCP link: reads the socket, and parses frames.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "transports/tcp/connection.h"
#include "transports/tcp/delivery.h"
#include "transports/tcp/flow_control.h"
#include "transports/tcp/open_messages.h"
#include "transports/tcp/stream_table.h"
#include "transports/tcp/wire.h"

namespace collectives::tcp {

// What has been read and is not parsed yet: nothing or the beginning of a header, whenever the link waits for more;
// after a short sendrecv in vain anything, until it goes on as a stream.
struct Input {
  struct alignas(64) Memory {
    std::byte bytes[64 << 10];
  };
  static constexpr std::size_t kBytes = sizeof(Memory);

  std::byte* data() const { return memory->bytes; }

  std::unique_ptr<Memory> memory{new Memory};
  std::size_t used = 0;
};

class Receiver {
 public:
  Receiver(Connection& connection, FlowControl& flow, StreamTable& streams, OpenMessages& messages, Delivery& delivery,
           Input& input)
      : connection_(connection),
        flow_(flow),
        streams_(streams),
        messages_(messages),
        delivery_(delivery),
        input_(input) {}

  // Reads what can be read without blocking; true when anything came.
  bool read_some();
  // Handles what is in the input.
  void parse();
  bool is_inside_payload() const { return payload_left_ > 0; }
  // Some stream waits for a long message, which is best read to where it belongs.
  void expect_long(bool expected) { long_expected_ = expected; }

  // The stream, or those of the communicator that are not open here, go away: the rest of their payload is dropped.
  void let_go(const TcpStream& s) { current_ = current_ == &s ? nullptr : current_; }
  void let_go_unknown(std::uint32_t communicator);

 private:
  void on_header(const wire::FrameHeader& header);
  void on_stream_frame(const wire::FrameHeader& header);
  void on_payload(const std::byte* data, std::size_t bytes);
  TcpStream* stream_of(const wire::FrameHeader& header);
  bool can_land() const;

  Connection& connection_;
  FlowControl& flow_;
  StreamTable& streams_;
  OpenMessages& messages_;
  Delivery& delivery_;
  Input& input_;
  wire::FrameHeader frame_;  // the frame being read
  std::size_t payload_left_ = 0;
  TcpStream* current_ = nullptr;  // its stream; nullptr: the payload is dropped
  bool long_expected_ = false;
  std::string report_;  // the part of a report that has arrived
};

}  // namespace collectives::tcp
