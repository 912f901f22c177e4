#include "memory/host_memory.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace collectives {
namespace {

// Segments without a heap for which a default arena has room, besides those with one.
constexpr std::size_t kSegments = 1024;

}  // namespace

HostMemory::HostMemory(int rank, const Limits& limits, const SegmentLayout& layout, const Memory& kind,
                       std::vector<std::byte*> bases, std::vector<int> doorbells, std::shared_ptr<void> owner,
                       int descriptor)
    : rank_(rank),
      limits_(limits),
      layout_(layout),
      kind_(kind),
      bases_(std::move(bases)),
      doorbells_(std::move(doorbells)),
      owner_(std::move(owner)),
      descriptor_(descriptor),
      arena_(layout.arena_bytes) {}

HostMemory::~HostMemory() { forget_descriptor(); }

void HostMemory::leave_to_parent() {
  of_parent_ = true;
  forget_descriptor();
}

void HostMemory::forget_descriptor() {
  if (descriptor_ >= 0) {
    close(descriptor_);
    descriptor_ = -1;
  }
}

bool HostMemory::isolate(const std::byte* data, std::size_t bytes) {
  if (kind_.make_private == nullptr || descriptor_ < 0) {
    return true;  // between threads of one process there is nothing to be done
  }
  const std::lock_guard guard(mutex_);
  const auto offset = static_cast<std::size_t>(data - bases_[rank_]);
  bytes = whole_pages(bytes);
  isolated_.emplace_back(offset, bytes);
  return kind_.make_private(descriptor_, offset, bases_[rank_] + offset, bytes);
}

// Maps the segment at this offset of the arena as shared memory again, where parts of it were made private.
void HostMemory::join_again(std::size_t offset) {
  const std::size_t begin = layout_.arena + offset;
  const std::size_t end = begin + arena_.bytes_at(offset);
  std::erase_if(isolated_, [&](const auto& part) {
    return part.first >= begin && part.first < end &&
           kind_.make_shared(descriptor_, part.first, bases_[rank_] + part.first, part.second);
  });
}

std::size_t HostMemory::default_arena_bytes(int size, const Limits& limits, std::size_t heap_bytes) {
  return 4 * heap_bytes + kSegments * SegmentLayout(size, limits, 0).total;
}

std::unique_ptr<Domain> HostMemory::world_domain() const {
  return std::make_unique<Domain>(rank_, limits_, layout_, bases_, doorbells_, owner_);
}

std::unique_ptr<Domain> HostMemory::group_domain(int rank, const SegmentLayout& layout, const std::vector<int>& members,
                                                 const std::vector<std::optional<std::size_t>>& offsets,
                                                 std::shared_ptr<void> owner) const {
  std::vector<std::byte*> bases;
  std::vector<int> doorbells;
  std::vector<const std::atomic<std::uint32_t>*> sleeping;
  for (std::size_t m = 0; m < members.size(); ++m) {
    std::byte* world = offsets[m] ? bases_[members[m]] : nullptr;
    bases.push_back(world == nullptr ? nullptr : world + layout_.arena + *offsets[m]);
    doorbells.push_back(world == nullptr ? -1 : doorbells_[members[m]]);
    sleeping.push_back(world == nullptr ? nullptr : &reinterpret_cast<ControlPage*>(world)->sleeping);
  }
  return std::make_unique<Domain>(rank, limits_, layout, std::move(bases), std::move(doorbells), std::move(owner),
                                  std::move(sleeping));
}

ControlPage& HostMemory::control(int world_rank, std::size_t offset) const {
  return *reinterpret_cast<ControlPage*>(bases_[world_rank] + layout_.arena + offset);
}

bool HostMemory::is_segment(int world_rank, std::size_t offset, std::size_t bytes, std::uint32_t communicator) const {
  return bases_[world_rank] != nullptr && offset % page_bytes() == 0 && bytes <= layout_.arena_bytes &&
         offset <= layout_.arena_bytes - bytes &&
         control(world_rank, offset).communicator.load(std::memory_order_acquire) == communicator;
}

void HostMemory::set_sleeping(int threads) {
  auto& sleeping = control(rank_).sleeping;
  // The caller looks for work after this. This is the one place where a later load must not overtake a store.
#if defined(__SANITIZE_THREAD__)
  sleeping.exchange(static_cast<std::uint32_t>(threads), std::memory_order_seq_cst);  // this sanitizer knows no fences
#else
  sleeping.store(static_cast<std::uint32_t>(threads), std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

std::uint32_t HostMemory::publish_core() {
  const auto core = static_cast<std::uint32_t>(sched_getcpu() + 1);
  auto& own = control(rank_).core;
  // Relaxed, as where it is read: it is a hint, and may be late. Other cores have the line in their caches, so it
  // is written only when it changes.
  if (own.load(std::memory_order_relaxed) != core) {
    own.store(core, std::memory_order_relaxed);
  }
  return core;
}

bool HostMemory::runs_on(int world_rank, std::uint32_t core) const {
  return control(world_rank).core.load(std::memory_order_relaxed) == core;
}

int HostMemory::others_on(std::uint32_t core) const {
  int count = 0;
  for (int w = 0; w < static_cast<int>(bases_.size()); ++w) {
    count += w != rank_ && bases_[w] != nullptr && runs_on(w, core) ? 1 : 0;
  }
  return count;
}

ControlPage& HostMemory::first_page() const {
  const auto first = std::find_if(bases_.begin(), bases_.end(), [](const std::byte* base) { return base != nullptr; });
  return *reinterpret_cast<ControlPage*>(*first);
}

std::optional<std::size_t> HostMemory::allocate(std::size_t bytes, std::size_t used, std::uint32_t communicator,
                                                const std::function<bool(int)>& gone) {
  const std::lock_guard guard(mutex_);
  reclaim(gone);
  const std::optional<std::size_t> offset = arena_.allocate(bytes);
  if (offset && memory_is_counted()) {
    try {
      reserve(bases_[rank_] + layout_.arena + *offset, used);
    } catch (const std::system_error&) {
      clear(*offset);
      return std::nullopt;
    }
  }
  if (offset) {
    // Release: the zeros of the segment become visible before the number by which other ranks recognise it.
    control(rank_, *offset).communicator.store(communicator, std::memory_order_release);
  }
  return offset;
}

void HostMemory::shrink(std::size_t offset, std::size_t bytes) {
  const std::lock_guard guard(mutex_);
  arena_.shrink(offset, bytes);
}

// Free memory is always zero. What the system refuses to release stays allocated for good.
void HostMemory::clear(std::size_t offset) {
  join_again(offset);
  if (kind_.release(bases_[rank_] + layout_.arena + offset, arena_.bytes_at(offset))) {
    arena_.free(offset);
  }
}

void HostMemory::free(std::size_t offset) {
  const std::lock_guard guard(mutex_);
  clear(offset);
}

void HostMemory::retire(std::size_t offset, std::vector<Neighbour> others) {
  leave(offset);
  const std::lock_guard guard(mutex_);
  retired_.push_back({offset, std::move(others)});
}

void HostMemory::leave(std::size_t offset) {
  std::uint64_t open = 0;
  // Release: whatever this rank did to the segments of others is over. Only this rank writes the word.
  control(rank_, offset).left.compare_exchange_strong(open, 1, std::memory_order_release, std::memory_order_relaxed);
}

// A rank that uses its own segment again for something else has left as well.
bool HostMemory::has_left(const Neighbour& other) const {
  // Acquire: the segment is cleared and used again after the last access of that rank.
  const ControlPage& page = control(other.rank, other.offset);
  return page.left.load(std::memory_order_acquire) != 0 ||
         page.communicator.load(std::memory_order_acquire) != other.communicator;
}

void HostMemory::reclaim(const std::function<bool(int)>& gone) {
  std::erase_if(retired_, [&](const Retired& segment) {
    for (const Neighbour& other : segment.others) {
      if (!gone(other.rank) && !has_left(other)) {
        return false;
      }
    }
    clear(segment.offset);
    return true;
  });
}

void GroupSegment::share(std::vector<HostMemory::Neighbour> others) {
  others_ = std::move(others);
  shared_ = true;
}

GroupSegment::~GroupSegment() {
  if (memory_->of_parent()) {
    return;  // the parent's
  }
  if (cancelled_) {
    memory_->free(offset_);
  } else if (shared_) {
    memory_->retire(offset_, std::move(others_));
  } else {
    // Making the group was broken off, and other ranks may have mapped the segment. They see that this rank has left;
    // but this rank cannot know when they have, so it never uses the segment again.
    memory_->leave(offset_);
  }
}

}  // namespace collectives
