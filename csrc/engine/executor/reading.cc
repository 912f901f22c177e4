#include "engine/executor/reading.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "memory/pages.h"

namespace collectives {
namespace {

// The arguments of PAGEMAP_SCAN, which Linux has since 6.7; the headers of this machine may be older.
struct ScanArgument {
  std::uint64_t size, flags, start, end, walk_end, vector, vector_length, most_pages;
  std::uint64_t inverted, all_of, any_of, returned;
};
struct ScanRegion {
  std::uint64_t start, end, categories;
};
constexpr unsigned long kPagemapScan = _IOWR('f', 16, ScanArgument);
constexpr std::uint64_t kIsHuge = 1 << 6;

constexpr std::int64_t kSamples = 5;
// Memory can move to other pages at the same address.
constexpr int kUsesOfKnown = 16;

// Looks at a few places: arrays are on large pages for the most part or not at all.
bool is_on_large_pages(const Span& span) {
  const int map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (map < 0) {
    return false;
  }
  std::int64_t large = 0;
  const auto begin = reinterpret_cast<std::uint64_t>(span.data);
  for (std::int64_t i = 0; i < kSamples; ++i) {
    const std::uint64_t at = begin + static_cast<std::uint64_t>((span.bytes - 1) * i / (kSamples - 1));
    ScanRegion region{};
    ScanArgument scan{};
    scan.size = sizeof scan;
    scan.start = at / page_bytes() * page_bytes();  // of a large page any part will do
    scan.end = scan.start + page_bytes();
    scan.vector = reinterpret_cast<std::uint64_t>(&region);
    scan.vector_length = 1;
    scan.all_of = kIsHuge;
    scan.returned = kIsHuge;
    large += ioctl(map, kPagemapScan, &scan) > 0 ? 1 : 0;
  }
  close(map);
  return large >= kSamples - 1;
}

}  // namespace

// Reads from address 0, where no memory is: the kernel checks permissions first, so EFAULT says that they are there.
bool Reading::permitted() {
  if (!permitted_) {
    permitted_ = true;
    for (std::size_t r = 0; r < sources_.size(); ++r) {
      if (static_cast<int>(r) == rank_) {
        continue;
      }
      char byte = 0;
      const iovec local{&byte, 1};
      const iovec remote{nullptr, 1};
      const bool may =
          sources_[r].pid > 0 && process_vm_readv(sources_[r].pid, &local, 1, &remote, 1, 0) < 0 && errno == EFAULT;
      permitted_ = *permitted_ && may;
    }
  }
  return *permitted_;
}

bool Reading::fast(const Span& span) {
  const auto place = (reinterpret_cast<std::uintptr_t>(span.data) / page_bytes() * 0x9e3779b97f4a7c15ULL) >> 58;
  static_assert(kKnown == 1 << (64 - 58));
  Known& known = known_[place];
  if (known.data != span.data || known.bytes != span.bytes || ++known.uses > kUsesOfKnown) {
    known = {span.data, span.bytes, 0, is_on_large_pages(span)};
  }
  return known.fast;
}

bool Reading::read(int r, std::byte* to, std::uint64_t from, std::int64_t bytes) {
  const Source& source = sources_[static_cast<std::size_t>(r)];
  while (bytes > 0) {
    const iovec local{to, static_cast<std::size_t>(bytes)};
    const iovec remote{reinterpret_cast<void*>(from), static_cast<std::size_t>(bytes)};
    const ssize_t done = process_vm_readv(source.pid, &local, 1, &remote, 1, 0);
    if (done <= 0) {
      refusal_ = done < 0 && errno != ESRCH ? Refusal{r, errno} : Refusal();
      return false;
    }
    to += done;
    from += static_cast<std::uint64_t>(done);
    bytes -= done;
  }
  refusal_ = {};
  // The process is alive now, so its number has not been given to another one meanwhile.
  pollfd process{source.descriptor, POLLIN, 0};
  return source.descriptor < 0 || poll(&process, 1, 0) == 0;
}

}  // namespace collectives
