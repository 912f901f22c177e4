// What links over mapped memory do with the bytes in a cell.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/processor.h"
#include "cpu/take.h"
#include "transports/transport.h"

namespace collectives {

// Whether the lines of what is read are taken: on processors where that always pays, and on all up to this length,
// beyond which memcpy fills cells by a string instruction, which does not mind what others have read.
constexpr std::int64_t kAlwaysTaken = 2 << 10;

// Gives bytes of a cell, of which this rank is the only reader, to a request; returns how many it took.
inline std::int64_t consume(ReceiveRequest& request, std::byte* data, std::int64_t bytes) {
  std::int64_t used = 0;
  const bool take = bytes <= kAlwaysTaken || processor().takes_lines;
  while (request.remaining > 0 && used < bytes) {
    Span piece = request.destination.piece(std::min(bytes - used, request.remaining));
    if (request.reduce != nullptr) {
      const Span source = request.source.piece(piece.bytes);
      piece.bytes = std::min(piece.bytes, source.bytes);
      request.combine(piece.data, data + used, source.data, piece.bytes);
      request.source.advance(piece.bytes);
      if (take) {
        take_lines(data + used, piece.bytes);
      }
    } else if (take) {
      copy_taking(piece.data, data + used, piece.bytes);
    } else {
      std::memcpy(piece.data, data + used, static_cast<std::size_t>(piece.bytes));
    }
    request.destination.advance(piece.bytes);
    request.remaining -= piece.bytes;
    used += piece.bytes;
  }
  return used;
}

}  // namespace collectives
