#include "transports/tcp/link.h"

#include <algorithm>
#include <chrono>
#include <new>

#include "transports/tcp/wire.h"

namespace collectives {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A receive that has waited for so many idle rounds makes its stream known to the peer.
constexpr int kIdleRounds = 64;

constexpr milliseconds kFlushTime{1000};

}  // namespace

TcpLink::TcpLink(int fd, int peer_rank) : connection_(fd, peer_rank) {}

void TcpLink::open(Stream& stream) {
  TcpStream& s = streams_.open(stream);
  if (s.is_message()) {
    if (!s.mismatch && !stream.receives.empty()) {
      delivery_.serve(s);
    }
    messages_.enter(s);
  }
  idle_ = 0;
}

void TcpLink::close(Stream& stream) {
  auto* s = static_cast<TcpStream*>(stream.link_state);
  if (s == nullptr) {
    return;
  }
  stream.link_state = nullptr;
  output_.let_go(*s);
  receiver_.let_go(*s);
  flow_.count_closed(*s);
  if (s->is_message()) {
    messages_.leave(*s);
  }
  streams_.close(*s);
}

void TcpLink::forget(std::uint32_t communicator) {
  receiver_.let_go_unknown(communicator);
  streams_.forget(communicator);
}

// No stream, and nothing to be sent, reported or read on. The engine fetches no events after a sendrecv: there are none
// now, and none can come with what ShortSendRecv accepts.
bool TcpLink::is_idle() const {
  return connection_.is_undisturbed() && streams_.collectives().empty() && !messages_.any() && flow_.unknown() == 0 &&
         sender_.is_idle() && !receiver_.is_inside_payload();
}

bool TcpLink::begin_sendrecv(const SendRecv& sendrecv) {
  if (!is_idle() || !short_sendrecv_.begin(sendrecv)) {
    return false;
  }
  bytes_sent += short_sendrecv_.sent(sendrecv);
  return true;
}

void TcpLink::open_begun(Stream& stream, const SendRecv& sendrecv) {
  open(stream);
  short_sendrecv_.continue_as(*streams_.collectives().back(), sendrecv);
  receiver_.parse();  // what has come since: progress() looks at the input only when more comes
}

bool TcpLink::progress() {
  try {
    return progress_all();
  } catch (const std::bad_alloc&) {
    // In the middle of a frame, after which nothing can be understood.
    connection_.fail("this process has no memory left");
    return true;
  }
}

bool TcpLink::progress_all() {
  bool moved = settle();  // also when the connection is gone: what arrived before is still delivered
  if (connection_.is_down()) {
    return moved;
  }
  moved |= sender_.write_some();
  const bool arrived = receiver_.read_some();
  if (arrived && !connection_.is_down() && sender_.may_answer()) {
    sender_.write_some();  // credits, and what the peer's credits allow
  }
  moved |= arrived;
  if (moved) {
    idle_ = 0;
  } else if (idle_ < kIdleRounds && ++idle_ == kIdleRounds) {
    for (TcpStream* s : streams_.collectives()) {
      s->announce = !s->stream->receives.empty();
    }
    messages_.announce_quiet();
  }
  return moved;
}

// Serves requests of collectives that wait for nothing: sends of no bytes, receives posted after their bytes or tokens
// had arrived.
bool TcpLink::settle() {
  bool moved = false;
  bool awaits_long = messages_.any_awaits_long();
  for (TcpStream* s : streams_.collectives()) {
    auto& sends = s->stream->sends;
    while (!sends.empty() && !sends.front()->token && sends.front()->remaining == 0) {
      s->stream->end_send();
      moved = true;
    }
    if (!s->mismatch && !s->stream->receives.empty()) {
      moved |= delivery_.serve(*s);
      awaits_long |= s->front_receive_is_long();
    }
  }
  receiver_.expect_long(awaits_long);
  return moved;
}

void TcpLink::send_control(const std::string& report) {
  if (connection_.is_down()) {
    return;
  }
  sender_.add_report(report.substr(0, wire::kMaxReportBytes));
  sender_.write_some();
}

void TcpLink::shut_down() {
  const auto deadline = Clock::now() + kFlushTime;
  bool bye_appended = false;
  while (!connection_.is_down() && connection_.error() == 0) {
    const bool moved = progress();
    if (sender_.all_sent()) {
      if (bye_appended) {
        connection_.finish_sending(input_.data(), tcp::Input::kBytes);
        break;
      }
      sender_.append_bye();
      bye_appended = true;
      continue;
    }
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) {
      break;
    }
    if (!moved) {
      connection_.wait(!output_.empty(), left);
    }
  }
  connection_.close();
}

std::unique_ptr<Link> make_tcp_link(int fd, int peer_rank) { return std::make_unique<TcpLink>(fd, peer_rank); }

}  // namespace collectives
