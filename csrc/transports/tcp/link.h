// A message link over a connected stream socket: the parts that implement it, and the order in which they act. The
// frames are described in wire.h, flow control in flow_control.h.
//
//   Connection    the socket, how it ended, events        OpenMessages  the messages, by what may be done for them
//   FlowControl   who may send how much                   Sender        chooses what is written next
//   StreamTable   which streams there are                 Output        what is yet to be written
//   Delivery      arrived bytes into posted receives      Receiver      reads and parses
//   ShortSendRecv one message each way, without a stream
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transports/tcp/connection.h"
#include "transports/tcp/delivery.h"
#include "transports/tcp/flow_control.h"
#include "transports/tcp/open_messages.h"
#include "transports/tcp/output.h"
#include "transports/tcp/receiver.h"
#include "transports/tcp/sender.h"
#include "transports/tcp/short_sendrecv.h"
#include "transports/tcp/stream_table.h"
#include "transports/transport.h"

namespace collectives {

class TcpLink : public Link {
 public:
  TcpLink(int fd, int peer_rank);
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;

  std::string_view transport() const override { return "tcp"; }
  void open(Stream& stream) override;
  void close(Stream& stream) override;
  bool begin_sendrecv(const SendRecv& sendrecv) override;
  std::byte* finish_sendrecv(const SendRecv& sendrecv, int looks) override {
    return short_sendrecv_.finish(sendrecv, looks);
  }
  void open_begun(Stream& stream, const SendRecv& sendrecv) override;
  void forget(std::uint32_t communicator) override;
  std::optional<Arrival> arrival(const StreamKey& key) const override { return streams_.arrival(key); }
  void listen(std::uint32_t communicator, std::vector<StreamKey>* begun) override {
    streams_.listen(communicator, begun);
  }
  bool progress() override;
  void send_control(const std::string& report) override;
  // Blocks, for about a second at most.
  void shut_down() override;
  LinkEvent event() override { return connection_.next_event(); }
  // -1 after kClosed, kFailed and shut_down().
  int descriptor() const override { return connection_.descriptor(); }
  bool wants_write() const override { return !connection_.is_down() && output_.is_blocked() && !output_.empty(); }

  // Streams that the peer has begun and this rank has not opened.
  std::size_t unknown_streams() const { return flow_.unknown(); }

 private:
  bool progress_all();
  bool settle();
  bool is_idle() const;

  int idle_ = 0;  // calls of progress() in a row that moved nothing
  tcp::Delivery delivery_;
  tcp::Input input_;
  tcp::FlowControl flow_;
  tcp::StreamTable streams_{flow_};
  tcp::OpenMessages messages_{flow_};
  tcp::Output output_{connection_, bytes_sent};
  tcp::Sender sender_{connection_, flow_, streams_, messages_, output_};
  tcp::Receiver receiver_{connection_, flow_, streams_, messages_, delivery_, input_};
  tcp::ShortSendRecv short_sendrecv_{connection_, flow_, streams_, output_, input_};
  tcp::Connection connection_;  // last: it takes over the descriptor when nothing else can throw
};

// Takes ownership of a connected, authenticated stream socket (TCP, or a Unix socket pair).
std::unique_ptr<Link> make_tcp_link(int fd, int peer_rank);

}  // namespace collectives
