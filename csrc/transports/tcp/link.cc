#include "transports/tcp/link.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "core/grow.h"

namespace collectives {
namespace {

using Clock = std::chrono::steady_clock;

// A receive that has waited for so many idle rounds makes its stream known to the peer.
constexpr int kIdleRounds = 64;
// As many as may be open at a time without messages; the memory of further ones is given back.
constexpr std::size_t kSpareStreams = 8;

constexpr auto kFlushTime = std::chrono::milliseconds(1000);
constexpr auto kDrainTime = std::chrono::milliseconds(500);
constexpr int kQuietMilliseconds = 20;

// Between two processes of one host there is nothing to be congested, and pacing, which some algorithms do, costs up to
// a third of the bandwidth. This one is part of every kernel and open to every user.
constexpr char kPlainControl[] = "reno";

// Seconds. While nothing goes over a connection the kernel asks the other host whether it is still there. So boxes on
// the way that forget idle connections remember this one, and a host that has vanished is known when the next call
// comes. It gives up after about the time that it also takes over data that nobody acknowledges
// (net.ipv4.tcp_retries2), more than the default deadline: silence is what deadlines are for. TCP_USER_TIMEOUT would
// make both times one; but it also ends connections to ranks that live and do not read for a while, since a closed
// window counts as silence.
constexpr int kProbeAfter = 60;
constexpr int kProbeEvery = 60;
constexpr int kProbes = 15;

void keep_alive(int fd) {
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kProbeAfter, sizeof(kProbeAfter));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kProbeEvery, sizeof(kProbeEvery));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof(kProbes));
}

bool is_silence(int error) { return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH; }

// Whether both ends of a TCP connection have the same address.
bool ends_on_one_host(int fd) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_bytes = sizeof(own);
  socklen_t peer_bytes = sizeof(peer);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_bytes) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) != 0 || own.ss_family != peer.ss_family) {
    return false;
  }
  if (own.ss_family == AF_INET) {
    return reinterpret_cast<sockaddr_in&>(own).sin_addr.s_addr == reinterpret_cast<sockaddr_in&>(peer).sin_addr.s_addr;
  }
  return own.ss_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<sockaddr_in6&>(own).sin6_addr, &reinterpret_cast<sockaddr_in6&>(peer).sin6_addr,
                     sizeof(in6_addr)) == 0;
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000));
}

}  // namespace

TcpLink::TcpLink(int fd, int peer_rank) : fd_(fd), peer_(peer_rank), in_(new InputBuffer), bounce_(new Bounce) {
  ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) | O_NONBLOCK);
  ::fcntl(fd_, F_SETFD, FD_CLOEXEC);
  const int on = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // fails, harmlessly, on Unix sockets
  if (ends_on_one_host(fd_)) {
    ::setsockopt(fd_, IPPROTO_TCP, TCP_CONGESTION, kPlainControl, sizeof(kPlainControl) - 1);
  }
  keep_alive(fd_);
  out_.reserve(48 << 10);
  spare_streams_.reserve(kSpareStreams);
}

TcpLink::~TcpLink() {
  for (auto& [key, s] : streams_) {
    if (s.stream != nullptr) {
      s.stream->link_state = nullptr;
    }
  }
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

// A stream that is not known yet.
TcpStream& TcpLink::add_stream(const StreamKey& key) {
  Streams::iterator position;
  if (spare_streams_.empty()) {
    position = streams_.try_emplace(key).first;
  } else {
    Streams::node_type node = std::move(spare_streams_.back());
    spare_streams_.pop_back();
    node.key() = key;
    position = streams_.insert(std::move(node)).position;
  }
  position->second.key = key;
  return position->second;
}

void TcpLink::open(Stream& stream) {
  if ((stream.key.communicator & kMessageBit) == 0) {
    make_room(open_);
  }
  mark_opened(stream.key);
  const auto known = streams_.find(stream.key);
  TcpStream& s = known == streams_.end() ? add_stream(stream.key) : known->second;
  if (known != streams_.end() && s.stream == nullptr) {
    --unknown_;
    unknown_bytes_ -= s.received;
    note_taken();
    stream.meet(s.peer_signature);
    s.mismatch = !(s.peer_signature == stream.signature);
  }
  s.stream = &stream;
  stream.link_state = &s;
  if (s.is_message()) {
    enter(s);
  } else {
    open_.push_back(&s);
  }
  idle_ = 0;
}

// A message has been opened: all that it asks for is known.
void TcpLink::enter(TcpStream& s) {
  ++messages_;
  sending_ += s.stream->sends.empty() ? 0 : 1;
  if (!s.mismatch && !s.stream->receives.empty()) {
    complete_ready(s);
    if (s.stashed() > 0) {
      deliver_stash(s);
    }
    s.awaits_long = awaits_long(s);
    long_awaiting_ += s.awaits_long ? 1 : 0;
  }
  review(s);
}

void TcpLink::leave(TcpStream& s) {
  --messages_;
  sending_ -= s.stream->sends.empty() ? 0 : 1;
  long_awaiting_ -= s.awaits_long ? 1 : 0;
  Sending::leave(s);
  Receiving::leave(s);
}

// What may be done for a message that is open, after it was opened, or something has come for it or was sent.
void TcpLink::review(TcpStream& s) {
  const Stream& stream = *s.stream;
  const bool begun = s.started || s.heard;
  const auto sendable_now = [&] { return !begun || stream.sends.front()->token || sendable(s) > 0; };
  if (stream.sends.empty() || !sendable_now()) {
    Sending::leave(s);
  } else if (!ready_.has(s) && (begun || !held_.has(s))) {
    ready_.put(s);
  }
  if (s.awaits_long && stream.receives.empty()) {
    s.awaits_long = false;
    --long_awaiting_;
  }
  Receiving* row = !s.started && !stream.receives.empty() ? &quiet_ : nullptr;
  if (wants_to_speak(s)) {
    row = begun ? &due_ : &waiting_;
  }
  if (row == nullptr) {
    Receiving::leave(s);
  } else if (!row->has(s)) {
    row->put(s);
  }
}

// Lets the peer know of all receives of which it does not know.
void TcpLink::announce_quiet() {
  while (TcpStream* s = quiet_.front()) {
    s->announce = true;
    review(*s);
  }
}

void TcpLink::close(Stream& stream) {
  auto* s = static_cast<TcpStream*>(stream.link_state);
  if (s == nullptr) {
    return;
  }
  stream.link_state = nullptr;
  if (frame_left_ > 0 && frame_stream_ == s) {
    finish_frame_from_copy();
  }
  if (current_ == s) {
    current_ = nullptr;
  }
  ahead_ -= s->heard ? 0 : s->sent;
  if (s->is_message()) {
    leave(*s);
  } else {
    open_.erase(std::find(open_.begin(), open_.end(), s));
  }
  Streams::node_type node = streams_.extract(stream.key);
  if (spare_streams_.size() < kSpareStreams) {
    node.mapped() = TcpStream();
    spare_streams_.push_back(std::move(node));
  }
}

void TcpLink::forget(std::uint32_t communicator) {
  const auto position = std::lower_bound(forgotten_.begin(), forgotten_.end(), communicator);
  if (position != forgotten_.end() && *position == communicator) {
    return;
  }
  forgotten_.insert(position, communicator);
  opened_.erase(communicator);
  marked_ = nullptr;
  std::erase_if(streams_, [&](const auto& entry) {
    const TcpStream& s = entry.second;
    if ((s.key.communicator & kNumberBits) != communicator || s.stream != nullptr) {
      return false;
    }
    --unknown_;
    unknown_bytes_ -= s.received;
    note_taken();  // the peer may begin others instead
    if (current_ == &s) {
      current_ = nullptr;
    }
    return true;
  });
}

bool TcpLink::progress() {
  try {
    return progress_all();
  } catch (const std::bad_alloc&) {
    fail("this process has no memory left");  // in the middle of a frame, after which nothing can be understood
    return true;
  }
}

bool TcpLink::progress_all() {
  bool moved = settle();  // also when the connection is gone: what arrived before is still delivered
  if (down_) {
    return moved;
  }
  moved |= write_some();
  const bool arrived = read_some();
  if (arrived && !down_ && may_answer()) {
    write_some();  // credits, and what the peer's credits allow
  }
  moved |= arrived;
  if (moved) {
    idle_ = 0;
  } else if (idle_ < kIdleRounds && ++idle_ == kIdleRounds) {
    for (TcpStream* s : open_) {
      s->announce = !s->stream->receives.empty();
    }
    announce_quiet();
  }
  return moved;
}

void TcpLink::abort(const std::string& report) {
  if (down_) {
    return;
  }
  reports_.push_back(report.substr(0, wire::kMaxReportBytes));
  write_some();
}

LinkEvent TcpLink::event() {
  if (events_.empty()) {
    return {};
  }
  LinkEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void TcpLink::push_event(LinkEvent::Kind kind, const std::string& text) {
  events_.push_back({kind, "link to rank " + std::to_string(peer_) + ": " + text});
}

void TcpLink::fail(const std::string& why) {
  if (!down_) {
    down_ = true;
    push_event(LinkEvent::Kind::kFailed, why);
  }
}

// The connection is over; `error` is 0 at a plain end of file.
void TcpLink::ended(int error) {
  if (down_) {
    return;
  }
  if (bye_received_) {
    down_ = true;
    push_event(LinkEvent::Kind::kClosed, "closed by the peer");
    return;
  }
  const int cause = error != 0 ? error : socket_error_;
  const char* what = is_silence(cause) ? "connection given up by the kernel, for its host does not answer any more"
                                       : "connection closed by the peer without a good-bye";
  fail(std::string(what) + " (errno " + std::to_string(cause) +
       (cause == 0 ? ": end of file)" : std::string(": ") + std::strerror(cause) + ")"));
  // Other errors, such as a time-out, say that the network is cut.
  events_.back().ended = cause == 0 || cause == ECONNRESET || cause == EPIPE;
}

bool TcpLink::all_sent() const { return !has_output() && reports_.empty() && !sends_left(); }

void TcpLink::shut_down() {
  const auto deadline = Clock::now() + kFlushTime;
  bool bye_queued = false;
  while (!down_ && socket_error_ == 0) {
    const bool moved = progress();
    if (all_sent()) {
      if (bye_queued) {
        ::shutdown(fd_, SHUT_WR);
        drain();
        break;
      }
      append_frame(wire::FrameType::kBye, nullptr, 0);
      bye_queued = true;
      continue;
    }
    const int wait = milliseconds_until(deadline);
    if (wait == 0) {
      break;
    }
    if (!moved) {
      pollfd p{fd_, static_cast<short>(POLLIN | (has_output() ? POLLOUT : 0)), 0};
      ::poll(&p, 1, wait);
    }
  }
  down_ = true;
  if (fd_ >= 0) {
    ::close(fd_);
    fd_ = -1;
  }
}

// Closing a socket that holds unread bytes resets the connection, and a reset may overtake what we sent last. So read
// on until the peer's end of file, or until its kernel has everything and it has nothing to say.
void TcpLink::drain() {
  const auto deadline = Clock::now() + kDrainTime;
  while (true) {
    const ssize_t n = ::recv(fd_, in_->bytes, sizeof(in_->bytes), 0);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
      return;
    }
    const int wait = milliseconds_until(deadline);
    if (wait == 0) {
      return;
    }
    if (n < 0) {
      pollfd p{fd_, POLLIN, 0};
      int unsent = 0;
      if (::poll(&p, 1, std::min(wait, kQuietMilliseconds)) == 0 && ::ioctl(fd_, SIOCOUTQ, &unsent) == 0 &&
          unsent == 0) {
        return;
      }
    }
  }
}

std::unique_ptr<Link> make_tcp_link(int fd, int peer_rank) { return std::make_unique<TcpLink>(fd, peer_rank); }

}  // namespace collectives
