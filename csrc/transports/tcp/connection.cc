#include "transports/tcp/connection.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace collectives::tcp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kDrainTime{500};
constexpr milliseconds kQuietTime{20};

// Between two processes of one host there is nothing to be congested, and pacing, which some algorithms do, costs up to
// a third of the bandwidth. This one is part of every kernel and open to every user.
constexpr char kPlainControl[] = "reno";

// Seconds. While a connection is idle the kernel asks the other host whether it is still there. So firewalls on the way
// do not forget the connection, and a host that has vanished is known when the next call comes. The kernel gives up
// after about the time that it also waits for acknowledgements of data (net.ipv4.tcp_retries2), which is more than the
// default deadline: deadlines handle silence. TCP_USER_TIMEOUT would make both times one; but it also ends connections
// to ranks that live and do not read for a while, since a closed window counts as silence.
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

}  // namespace

Connection::Connection(int fd, int peer_rank) : fd_(fd), peer_(peer_rank) {
  ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) | O_NONBLOCK);
  ::fcntl(fd_, F_SETFD, FD_CLOEXEC);
  const int on = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // fails, harmlessly, on Unix sockets
  if (ends_on_one_host(fd_)) {
    ::setsockopt(fd_, IPPROTO_TCP, TCP_CONGESTION, kPlainControl, sizeof(kPlainControl) - 1);
  }
  keep_alive(fd_);
}

Connection::~Connection() { close(); }

ssize_t Connection::send(iovec* vectors, int count) const {
  msghdr message{};
  message.msg_iov = vectors;
  message.msg_iovlen = static_cast<std::size_t>(count);
  ssize_t n;
  do {
    n = count == 1 ? ::send(fd_, vectors[0].iov_base, vectors[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT)
                   : ::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  return n;
}

LinkEvent Connection::next_event() {
  if (events_.empty()) {
    return {};
  }
  LinkEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void Connection::push_event(LinkEvent::Kind kind, const std::string& text) {
  events_.push_back({kind, "link to rank " + std::to_string(peer_) + ": " + text});
}

void Connection::fail(const std::string& why) {
  if (!down_) {
    down_ = true;
    push_event(LinkEvent::Kind::kFailed, why);
  }
}

void Connection::ended(int error) {
  if (down_) {
    return;
  }
  if (bye_received_) {
    down_ = true;
    push_event(LinkEvent::Kind::kClosed, "closed by the peer");
    return;
  }
  const int cause = error != 0 ? error : error_;
  const char* what = is_silence(cause) ? "connection given up by the kernel, for its host does not answer any more"
                                       : "connection closed by the peer without a good-bye";
  fail(std::string(what) + " (errno " + std::to_string(cause) +
       (cause == 0 ? ": end of file)" : std::string(": ") + std::strerror(cause) + ")"));
  // Other errors, such as a time-out, say that the network is cut.
  events_.back().ended = cause == 0 || cause == ECONNRESET || cause == EPIPE;
}

void Connection::wait(bool writable, milliseconds timeout) const {
  pollfd p{fd_, static_cast<short>(POLLIN | (writable ? POLLOUT : 0)), 0};
  ::poll(&p, 1, static_cast<int>(timeout.count()));
}

// Closing a socket that holds unread bytes resets the connection, and a reset may overtake what we sent last. So this
// reads on until the peer's end of file, or until the peer's kernel has everything and the peer is silent.
void Connection::finish_sending(std::byte* scratch, std::size_t bytes) const {
  ::shutdown(fd_, SHUT_WR);
  const auto deadline = Clock::now() + kDrainTime;
  while (true) {
    const ssize_t n = ::recv(fd_, scratch, bytes, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
      return;
    }
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) {
      return;
    }
    if (n < 0) {
      pollfd p{fd_, POLLIN, 0};
      int unsent = 0;
      if (::poll(&p, 1, static_cast<int>(std::min(left, kQuietTime).count())) == 0 &&
          ::ioctl(fd_, SIOCOUTQ, &unsent) == 0 && unsent == 0) {
        return;
      }
    }
  }
}

void Connection::close() {
  down_ = true;
  if (fd_ >= 0) {
    ::close(fd_);
    fd_ = -1;
  }
}

}  // namespace collectives::tcp
