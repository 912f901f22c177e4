// The short way of a TCP link: one message each way on a link that has nothing else to do. On the wire it is a stream
// like any other, so each rank chooses this way or the usual one by itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transports/tcp/connection.h"
#include "transports/tcp/flow_control.h"
#include "transports/tcp/output.h"
#include "transports/tcp/receiver.h"
#include "transports/tcp/stream_table.h"
#include "transports/tcp/wire.h"
#include "transports/transport.h"

namespace collectives::tcp {

class ShortSendRecv {
 public:
  ShortSendRecv(Connection& connection, FlowControl& flow, StreamTable& streams, Output& output, Input& input)
      : connection_(connection), flow_(flow), streams_(streams), output_(output), input_(input) {}

  // See Link::begin_sendrecv() and finish_sendrecv(). The link must be idle.
  bool begin(const SendRecv& sendrecv);
  std::byte* finish(const SendRecv& sendrecv, int looks);
  // The sendrecv goes on as this stream, which has been opened.
  void continue_as(TcpStream& s, const SendRecv& sendrecv);
  // Bytes of a sendrecv that has begun which are still to be sent, behind what the output has packed.
  std::int64_t left() const { return left_; }
  // Counts what has been sent of the payload.
  std::int64_t sent(const SendRecv& sendrecv) const { return sendrecv.bytes - left_; }

 private:
  bool accept(const SendRecv& sendrecv);

  Connection& connection_;
  FlowControl& flow_;
  StreamTable& streams_;
  Output& output_;
  Input& input_;
  wire::FrameHeader peer_header_;
  std::int64_t left_ = 0;
};

}  // namespace collectives::tcp
