// The socket of a TCP link: its options, reads and writes that never block, how the connection ended, and the events
// that the engine fetches.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <deque>
#include <string>
#include <utility>

#include "transports/transport.h"

namespace collectives::tcp {

class Connection {
 public:
  // Takes ownership of a connected, authenticated stream socket (TCP, or a Unix socket pair).
  Connection(int fd, int peer_rank);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // As sendmsg(2), recv(2) and readv(2), but these never wait; send() is not interrupted either.
  ssize_t send(iovec* vectors, int count) const;
  ssize_t receive(void* to, std::size_t bytes) const { return ::recv(fd_, to, bytes, MSG_DONTWAIT); }
  ssize_t receive(iovec* vectors, int count) const {
    return count == 1 ? receive(vectors[0].iov_base, vectors[0].iov_len) : ::readv(fd_, vectors, count);
  }
  static bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

  // Nothing goes over the connection any more.
  bool is_down() const { return down_; }
  // It works, and there is no event to fetch.
  bool is_undisturbed() const { return !down_ && !bye_received_ && error_ == 0 && events_.empty(); }
  // -1 once it is down.
  int descriptor() const { return down_ ? -1 : fd_; }

  // The error of a system call that failed for good. The kernel reports it once, and the connection stays readable:
  // what the peer sent before may be all that is needed. ended() reports it when nothing is left to read.
  void keep_error(int error) { error_ = error; }
  int error() const { return error_; }

  void set_bye_received() { bye_received_ = true; }
  bool bye_received() const { return bye_received_; }

  // Takes the connection down, with an event that says why; without effect when it is down already.
  void fail(const std::string& why);
  // The kernel has ended the connection; `error` is 0 at a plain end of file.
  void ended(int error);

  void push_event(LinkEvent event) { events_.push_back(std::move(event)); }
  LinkEvent next_event();

  // Blocks until the socket is readable, or writable where that is asked for.
  void wait(bool writable, std::chrono::milliseconds timeout) const;
  // Ends the direction to the peer, and waits a moment until the peer's kernel has everything. `scratch` is written to.
  void finish_sending(std::byte* scratch, std::size_t bytes) const;
  void close();

 private:
  void push_event(LinkEvent::Kind kind, const std::string& text);

  int fd_;
  const int peer_;
  bool down_ = false;
  bool bye_received_ = false;
  int error_ = 0;
  std::deque<LinkEvent> events_;
};

}  // namespace collectives::tcp
