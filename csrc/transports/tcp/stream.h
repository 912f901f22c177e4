// What a TCP link knows about one stream, and which streams of a communicator were opened before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "transports/transport.h"

namespace collectives {

// No element is larger.
inline constexpr std::size_t kMaxElementBytes = 64;

// A message that is received in pieces from this size on is worth a system call of its own.
inline constexpr std::int64_t kLongBytes = 16 << 10;

// A message stands in at most one row of tcp::OpenMessages for what it sends, and in one for what it receives.
struct TcpSends;
struct TcpReceives;

struct TcpStream : ListNode<TcpStream, TcpSends>, ListNode<TcpStream, TcpReceives> {
  StreamKey key;
  Stream* stream = nullptr;  // nullptr while the peer is ahead and this rank has not opened it

  bool is_message() const { return (key.communicator & kMessageBit) != 0; }

  // Sending.
  bool started = false;   // a frame of ours is out, so the peer knows that we opened the stream
  bool announce = false;  // the peer should learn that the stream is open here, although no data or credit is due
  std::int64_t sent = 0;
  std::int64_t acked = 0;  // how many of these bytes the peer has consumed

  // Receiving.
  bool peer_started = false;  // a frame of the peer is in, so the peer has opened the stream
  bool mismatch = false;      // the signatures differ: nothing is delivered, the caller's memory stays as it is
  Signature peer_signature;
  std::uint64_t order = 0;       // Arrival::order, of a message that the peer has begun first
  std::int64_t received = 0;     // bytes that the frames so far have declared
  std::int64_t consumed = 0;     // bytes delivered into requests
  std::int64_t announced = 0;    // value of `consumed` in the last frame to the peer
  std::uint64_t tokens = 0;      // arrived and not yet matched
  std::vector<std::byte> stash;  // arrived and not yet delivered: from stash_head on
  std::size_t stash_head = 0;
  bool awaits_long = false;  // a long message, and counted as one by tcp::OpenMessages
  // The part of an element that has arrived, when the front request reduces.
  std::size_t partial_bytes = 0;
  alignas(64) std::array<std::byte, kMaxElementBytes> partial;

  // One of the two ranks has sent a frame of it, so it no longer counts as a stream that has yet to start.
  bool begun() const { return started || peer_started; }
  bool front_receive_is_long() const {
    return !stream->receives.empty() && stream->receives.front()->remaining >= kLongBytes;
  }
  std::size_t stashed() const { return stash.size() - stash_head; }
};

struct StreamKeyHash {
  std::size_t operator()(const StreamKey& key) const {
    return std::hash<std::uint64_t>()(key.sequence * 0x9e3779b97f4a7c15U + key.communicator);
  }
};

// Remembers which of the last sequence numbers of a communicator were opened, in whatever order. So a late frame of a
// closed stream is told apart from an early frame of a stream still to come. Numbers below the window count as closed.
class OpenedWindow {
 public:
  void mark(std::uint64_t sequence) {
    if (!any_ || sequence > highest_) {
      if (!any_ || sequence - highest_ >= kBits) {
        words_.fill(0);
      } else {
        for (std::uint64_t s = highest_ + 1; s < sequence; ++s) {
          word(s) &= ~bit(s);
        }
      }
      highest_ = sequence;
      any_ = true;
    } else if (highest_ - sequence >= kBits) {
      return;
    }
    word(sequence) |= bit(sequence);
  }

  bool opened(std::uint64_t sequence) const {
    if (!any_ || sequence > highest_) {
      return false;
    }
    return highest_ - sequence >= kBits || (words_[sequence / 64 % kWords] & bit(sequence)) != 0;
  }

 private:
  static constexpr std::uint64_t kWords = 16;
  static constexpr std::uint64_t kBits = kWords * 64;
  static std::uint64_t bit(std::uint64_t sequence) { return std::uint64_t{1} << (sequence % 64); }
  std::uint64_t& word(std::uint64_t sequence) { return words_[sequence / 64 % kWords]; }

  bool any_ = false;
  std::uint64_t highest_ = 0;
  std::array<std::uint64_t, kWords> words_{};
};

}  // namespace collectives
