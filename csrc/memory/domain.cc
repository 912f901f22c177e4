#include "memory/domain.h"

#include <unistd.h>

#include <stdexcept>
#include <utility>

namespace collectives {
namespace {

// Slots are not a power of two apart, so that the first lines of all slots do not fall into one set of the cache.
constexpr std::size_t kSlotSkew = 10 * kCacheLine;

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

SegmentLayout::SegmentLayout(int size, const Limits& limits, std::size_t heap, std::size_t arena, std::size_t page)
    : heap_bytes(heap), arena_bytes(arena) {
  if (limits.slots <= 0 || (limits.slots & (limits.slots - 1)) != 0) {
    throw std::logic_error("the number of slots must be a power of two");
  }
  headers = round_up(sizeof(ControlPage), page);
  flags = headers + kHeaderLines * kHeaderPitch;
  acks = flags + static_cast<std::size_t>(kFlags) * limits.slots * sizeof(FlagLine);
  bounce = round_up(acks + size * kChannels * sizeof(AckLine), page);
  slot_stride = round_up(limits.slot_bytes, kCacheLine) + kSlotSkew;
  fifos = round_up(bounce + limits.slots * slot_stride, page);
  fifo_stride = round_up(kFifoCells * (kCacheLine + kFifoCellBytes), page);
  this->heap = fifos + size * kChannels * fifo_stride;
  this->arena = round_up(this->heap + heap_bytes, page);
  total = round_up(this->arena + arena_bytes, page);
}

Domain::Domain(int rank, const Limits& limits, SegmentLayout layout, std::vector<std::byte*> bases,
               std::vector<int> doorbells, std::shared_ptr<void> owner,
               std::vector<const std::atomic<std::uint32_t>*> sleeping)
    : rank_(rank),
      limits_(limits),
      slot_mask_(limits.slots - 1),
      layout_(layout),
      bases_(std::move(bases)),
      doorbells_(std::move(doorbells)),
      sleeping_(std::move(sleeping)),
      owner_(std::move(owner)) {
  if (sleeping_.empty()) {
    for (int r = 0; r < size(); ++r) {
      sleeping_.push_back(has(r) ? &control(r).sleeping : nullptr);
    }
  }
}

void Domain::ring(int rank) const {
  const std::uint64_t one = 1;
  // A full counter means that the rank is being woken already.
  [[maybe_unused]] const ssize_t written = write(doorbells_[rank], &one, sizeof one);
}

}  // namespace collectives
