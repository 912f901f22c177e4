#include <algorithm>
#include <cstring>
#include <vector>

#include "core/thread_pool.h"
#include "replicas/replicas.h"

namespace collectives {
namespace {

// Where there are several destinations, a block of the result is put together in the first and copied to the others
// while it is in a near cache.
constexpr std::int64_t kBlockBytes = 32 << 10;

// Reads the bytes of the result in order, from a position on.
class Cursor {
 public:
  Cursor(std::span<const RowSource> sources, const std::vector<std::int64_t>& begins, std::int64_t row_bytes,
         std::int64_t at)
      : sources_(sources), begins_(begins), row_(at / row_bytes), offset_(at % row_bytes) {
    which_ = std::upper_bound(begins.begin(), begins.end(), offset_) - begins.begin() - 1;
    offset_ -= begins[which_];
  }

  // Copies the next `bytes` bytes.
  void copy(std::byte* to, std::int64_t bytes) {
    while (bytes > 0) {
      const RowSource& source = sources_[which_];
      const std::int64_t size = std::min(source.row_bytes - offset_, bytes);
      std::memcpy(to, static_cast<const std::byte*>(source.data) + row_ * source.row_bytes + offset_,
                  static_cast<std::size_t>(size));
      to += size;
      bytes -= size;
      offset_ += size;
      if (offset_ == source.row_bytes) {
        offset_ = 0;
        if (++which_ == begins_.size()) {
          which_ = 0;
          ++row_;
        }
      }
    }
  }

 private:
  std::span<const RowSource> sources_;
  const std::vector<std::int64_t>& begins_;  // of each source in a row
  std::int64_t row_;
  std::int64_t offset_;  // in the row of the source
  std::size_t which_;
};

}  // namespace

void gather_replicas(std::int64_t rows, std::span<const RowSource> sources, std::span<void* const> destinations) {
  std::vector<std::int64_t> begins;
  std::int64_t row_bytes = 0;
  for (const RowSource& source : sources) {
    begins.push_back(row_bytes);
    row_bytes += source.row_bytes;
  }
  const std::int64_t total = rows * row_bytes;
  if (total == 0 || destinations.empty()) {
    return;
  }
  parallel_for(
      total * static_cast<std::int64_t>(destinations.size() + 1), [&](std::int64_t slice, std::int64_t slices) {
        const auto border = [&](std::int64_t s) { return s == slices ? total : total / slices * s / kGrain * kGrain; };
        const std::int64_t end = border(slice + 1);
        std::int64_t at = border(slice);
        if (at == end) {
          return;
        }
        Cursor cursor(sources, begins, row_bytes, at);
        const std::int64_t step = destinations.size() == 1 ? end - at : kBlockBytes;
        for (; at < end; at += step) {
          const std::int64_t bytes = std::min(step, end - at);
          std::byte* first = static_cast<std::byte*>(destinations[0]) + at;
          cursor.copy(first, bytes);
          for (void* destination : destinations.subspan(1)) {
            std::memcpy(static_cast<std::byte*>(destination) + at, first, static_cast<std::size_t>(bytes));
          }
        }
      });
}

}  // namespace collectives
