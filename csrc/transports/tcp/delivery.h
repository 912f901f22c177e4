// Puts what has arrived of a stream where its posted receives want it, reduced where they say so.
//
// Bytes of a stream whose signature differs from the peer's must not reach the caller's memory: the callers of this
// class see to that.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "transports/tcp/stream.h"
#include "transports/transport.h"

namespace collectives::tcp {

class Delivery {
 public:
  Delivery() : bounce_(new Bounce) {}

  // Completes the requests at the front that need no more bytes.
  static bool complete_ready(TcpStream& s);
  // The same, and delivers what is in the stash.
  bool serve(TcpStream& s);
  // Returns how many of the bytes the posted requests wanted.
  std::int64_t deliver(TcpStream& s, const std::byte* data, std::int64_t bytes);

  // Reading a payload straight to where it belongs: plan_landing() appends up to `most` places, for at most `bytes`
  // bytes of which it returns how many; land() follows when so many, or fewer, have been read to there.
  std::size_t plan_landing(TcpStream& s, std::size_t bytes, iovec* vectors, int most, int* count);
  void land(TcpStream& s, std::size_t bytes);

 private:
  void reduce_bytes(TcpStream& s, ReceiveRequest& r, const std::byte* data, std::int64_t bytes);

  struct alignas(64) Bounce {
    std::byte bytes[512 << 10];
  };
  std::unique_ptr<Bounce> bounce_;  // what the reducer reads
};

}  // namespace collectives::tcp
