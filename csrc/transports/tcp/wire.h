// The frames that travel over a stream socket: a fixed header, little-endian, then the payload.
//
//   offset  0  magic              u32
//           4  type               u8
//           5  flags              u8   bit 0: the first frame of this stream in this direction
//           6  reserved           u16  zero
//           8  communicator       u32
//          12  length             u32  payload bytes behind the header
//          16  sequence           u64
//          24  credit             u64  bytes of this stream that the sender of the frame has consumed so far
//          32  signature          16 bytes
//          48  streams opened      u32  streams begun by the receiver of the frame and opened by its sender, mod 2^32
//          52  reserved           u32  zero
//
// Communicator, sequence, credit and signature are zero in frames that belong to no stream (abort, bye, streams).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/signature.h"
#include "transports/transport.h"

namespace collectives::wire {

inline constexpr std::uint32_t kMagic = 0x31434c43;  // "CLC1"
// A multiple of 8, so that payloads which follow headers in one receive buffer stay aligned for the reducer.
inline constexpr std::size_t kHeaderBytes = 56;

// What a sender may have in flight of one stream: before, and after, it knows that the peer has opened the stream.
// Much at once is fast: an exchange of 512 KiB takes twice as long in pieces of 64 KiB. Ranks that exchange
// Limits::exchange_bytes() at a time have two to four times that in flight. But streams that the peer has not opened
// fill its memory, so of those only some may begin with much, see kAheadBytes.
inline constexpr std::int64_t kWindowBytes = 4 << 20;
inline constexpr std::int64_t kEagerBytes = 1 << 20;
inline constexpr std::int64_t kEagerMessageBytes = 64 << 10;
// The longest frame of data: no other stream gets a turn within one.
inline constexpr std::int64_t kMaxFrameBytes = 1 << 20;
static_assert(kMaxFrameBytes <= kWindowBytes);

inline std::int64_t eager_bytes(std::uint32_t communicator) {
  return (communicator & kMessageBit) != 0 ? kEagerMessageBytes : kEagerBytes;
}

// Streams that a rank may have begun and that the peer has not opened yet: for messages that it sends, for those that
// it waits for, and for collectives, which is also what a receiver puts up with. They count together; the steps keep
// messages that no rank wants yet from holding up the others.
inline constexpr std::uint32_t kStreamsAhead = 2048;
inline constexpr std::uint32_t kReceivesAhead = 3072;
inline constexpr std::uint32_t kMaxUnknownStreams = 4096;
// Once so much is in flight that the peer is not known to have opened, streams begin with kEagerMessageBytes. What a
// receiver keeps for streams that it has not opened follows from that.
inline constexpr std::int64_t kAheadBytes = 64 << 20;
inline constexpr std::int64_t kMaxUnknownBytes =
    kAheadBytes + kEagerBytes + std::int64_t{kMaxUnknownStreams} * kEagerMessageBytes;
inline constexpr std::size_t kMaxReportBytes = 64 << 10;

enum class FrameType : std::uint8_t {
  kData = 1,
  kToken = 2,    // a message of no bytes
  kCredit = 3,   // its header is all that it carries
  kAbort = 4,    // payload: the report
  kBye = 5,      // the last frame
  kStreams = 6,  // carries "streams opened" when no other frame does
};

struct FrameHeader {
  FrameType type = FrameType::kData;
  bool first = false;
  std::uint32_t communicator = 0;
  std::uint32_t length = 0;
  std::uint64_t sequence = 0;
  std::uint64_t credit = 0;
  Signature signature;
  std::uint32_t streams_opened = 0;
};

// Writes kHeaderBytes to `out`.
void encode(const FrameHeader& header, std::byte* out);

// Reads kHeaderBytes from `in`; false, with the offending values in `error`, when no valid sender writes such a header.
// What depends on the state of the link (credits, windows) is left to the link.
bool decode(const std::byte* in, FrameHeader* header, std::string* error);

}  // namespace collectives::wire
