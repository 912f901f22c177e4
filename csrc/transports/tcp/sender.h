// The sending half of a TCP link: chooses what is written next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "transports/tcp/connection.h"
#include "transports/tcp/flow_control.h"
#include "transports/tcp/open_messages.h"
#include "transports/tcp/output.h"
#include "transports/tcp/stream_table.h"
#include "transports/tcp/wire.h"

namespace collectives::tcp {

class Sender {
 public:
  Sender(Connection& connection, FlowControl& flow, const StreamTable& streams, OpenMessages& messages, Output& output)
      : connection_(connection), flow_(flow), streams_(streams), messages_(messages), output_(output) {}

  // Writes what it can without blocking; true when anything was written, or packed to be written.
  bool write_some();
  // Whether write_some() may find anything to do after what has just arrived.
  bool may_answer() const;
  // Nothing is waiting to be written, credit aside.
  bool is_idle() const { return output_.empty() && reports_.empty(); }
  bool all_sent() const { return is_idle() && !sends_left(); }

  // Control messages. A report goes out behind what is packed already, and before all else.
  void add_report(std::string report) { reports_.push_back(std::move(report)); }
  void append_bye() { append_header(wire::FrameType::kBye, nullptr, 0); }

 private:
  bool sends_left() const { return messages_.sending() > 0 || streams_.any_collective_sends(); }
  bool fill();
  void fill_credits();
  bool fill_turn(std::int64_t max_frame, bool* big);
  bool fill_collectives(std::int64_t max_frame, bool* big);
  bool fill_messages(std::int64_t max_frame, bool* big);
  bool append_data(TcpStream& s, std::int64_t bytes);
  void append_header(wire::FrameType type, TcpStream* s, std::int64_t length);
  bool write_once(bool* moved);

  Connection& connection_;
  FlowControl& flow_;
  const StreamTable& streams_;
  OpenMessages& messages_;
  Output& output_;
  std::deque<std::string> reports_;  // to be sent
  std::size_t turn_ = 0;             // the collective that comes first in the next turn
  bool messages_first_ = false;      // in the next turn
};

}  // namespace collectives::tcp
