#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/replicas.h"
#include "runtime/thread_pool.h"

namespace collectives {
namespace {

// A piece that goes to several destinations is in a cache close by after the first.
constexpr std::int64_t kPieceBytes = 32 << 10;

}  // namespace

void gather_replicas(std::int64_t rows, std::span<const RowSource> sources, std::span<void* const> destinations) {
  std::vector<std::int64_t> begins;  // of each source in a row
  std::int64_t row_bytes = 0;
  for (const RowSource& source : sources) {
    begins.push_back(row_bytes);
    row_bytes += source.row_bytes;
  }
  const std::int64_t total = rows * row_bytes;
  if (total == 0) {
    return;
  }
  const auto borders = static_cast<std::int64_t>(destinations.size() + 1);
  share_out(total * borders, [&](std::int64_t slice, std::int64_t slices) {
    const auto border = [&](std::int64_t s) { return s == slices ? total : total / slices * s / kBorder * kBorder; };
    std::int64_t at = border(slice);
    const std::int64_t end = border(slice + 1);
    if (at == end) {
      return;
    }
    std::int64_t row = at / row_bytes;
    std::int64_t in_row = at % row_bytes;
    auto which = static_cast<std::size_t>(std::upper_bound(begins.begin(), begins.end(), in_row) - begins.begin() - 1);
    while (at < end) {
      const RowSource& source = sources[which];
      const std::int64_t offset = in_row - begins[which];
      const std::int64_t bytes = std::min({source.row_bytes - offset, end - at, kPieceBytes});
      const auto* from = static_cast<const std::byte*>(source.data) + row * source.row_bytes + offset;
      for (void* destination : destinations) {
        std::memcpy(static_cast<std::byte*>(destination) + at, from, static_cast<std::size_t>(bytes));
      }
      at += bytes;
      in_row += bytes;
      while (at < end && in_row == (which + 1 < begins.size() ? begins[which + 1] : row_bytes)) {
        if (++which == begins.size()) {
          which = 0;
          in_row = 0;
          ++row;
        }
      }
    }
  });
}

}  // namespace collectives
