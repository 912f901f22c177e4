// What links over mapped memory do with the bytes in a cell.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/take.h"
#include "core/transport.h"

namespace collectives {

// Gives bytes of a cell, of which this rank is the only reader, to a request; returns how many it took.
inline std::int64_t consume(ReceiveRequest& request, std::byte* data, std::int64_t bytes) {
  std::int64_t used = 0;
  while (request.remaining > 0 && used < bytes) {
    Span piece = request.destination.piece(std::min(bytes - used, request.remaining));
    if (request.reduce != nullptr) {
      const Span source = request.source.piece(piece.bytes);
      piece.bytes = std::min(piece.bytes, source.bytes);
      request.combine(piece.data, data + used, source.data, piece.bytes);
      request.source.advance(piece.bytes);
      take_lines(data + used, piece.bytes);
    } else {
      copy_taking(piece.data, data + used, piece.bytes);
    }
    request.destination.advance(piece.bytes);
    request.remaining -= piece.bytes;
    used += piece.bytes;
  }
  return used;
}

}  // namespace collectives
