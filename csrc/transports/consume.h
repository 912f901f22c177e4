// What links over mapped memory do with the bytes in a cell.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/cache_lines.h"
#include "cpu/processor.h"
#include "transports/transport.h"

namespace collectives {

// Up to this length the reader acquires the ownership of the cache lines that it reads, so that the writer of the cell
// need not wait for them. Beyond it memcpy fills cells by a string instruction, which does not wait for lines that
// another core has read; then this pays on some processors only (Processor::owns_read_lines).
constexpr std::int64_t kAlwaysOwned = 2 << 10;

// Gives bytes of a cell, of which this rank is the only reader, to a request; returns how many it accepted.
inline std::int64_t consume(ReceiveRequest& request, std::byte* data, std::int64_t bytes) {
  std::int64_t used = 0;
  const bool own = bytes <= kAlwaysOwned || processor().owns_read_lines;
  while (request.remaining > 0 && used < bytes) {
    Span piece = request.destination.piece(std::min(bytes - used, request.remaining));
    if (request.reduce != nullptr) {
      const Span source = request.source.piece(piece.bytes);
      piece.bytes = std::min(piece.bytes, source.bytes);
      request.combine(piece.data, data + used, source.data, piece.bytes);
      request.source.advance(piece.bytes);
      if (own) {
        own_read_lines(data + used, piece.bytes);
      }
    } else if (own) {
      copy_and_own(piece.data, data + used, piece.bytes);
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
