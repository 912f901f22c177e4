// The memory that the ranks of one host have mapped, as one of them sees it.
//
// Every rank of the world has one segment, which all ranks of its host have mapped (memory/domain.h). At its end lies
// an arena of address space, whose pages cost memory only once they are touched. A rank allocates its segments of
// further communicators there, and sends the offsets to the others. So making a group passes no descriptors and maps
// nothing.
//
// The segment of a group is used again when all other ranks that have it mapped have left the group: until then they
// may read and write there, for example when they fail a group that this rank left long ago.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "memory/arena.h"
#include "memory/domain.h"
#include "memory/memory.h"
#include "memory/pages.h"

namespace collectives {

class HostMemory {
 public:
  // bases[w], doorbells[w]: of world rank w, as for a Domain. layout: of the world's segments. kind: what these are
  // made of. owner: keeps them. descriptor: of the own segment, which this object closes; -1 when there is none.
  HostMemory(int rank, const Limits& limits, const SegmentLayout& layout, const Memory& kind,
             std::vector<std::byte*> bases, std::vector<int> doorbells, std::shared_ptr<void> owner,
             int descriptor = -1);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // How much address space the arena of a world of `size` ranks has by default: for 64 groups with a
  // heap, and for hundreds without one.
  static std::size_t default_arena_bytes(int size, const Limits& limits, std::size_t heap_bytes);

  const Limits& limits() const { return limits_; }
  // The heap that each group gets where there is room.
  std::size_t group_heap_bytes() const { return layout_.heap_bytes / 16 / page_bytes() * page_bytes(); }

  std::unique_ptr<Domain> world_domain() const;
  // The domain of a group. offsets[m]: where in its arena world rank members[m] has its segment, nothing for members
  // that are not on this host. owner: keeps this object, and the own segment.
  std::unique_ptr<Domain> group_domain(int rank, const SegmentLayout& layout, const std::vector<int>& members,
                                       const std::vector<std::optional<std::size_t>>& offsets,
                                       std::shared_ptr<void> owner) const;
  // Whether a segment of this size can lie there, and is the one of this communicator.
  bool is_segment(int world_rank, std::size_t offset, std::size_t bytes, std::uint32_t communicator) const;

  // Whether this rank can address the memory of that rank of the world.
  bool maps(int world_rank) const { return bases_[world_rank] != nullptr; }
  // A line of the board of a rank (engine/groups/board.h) that is mapped.
  PublishedWords<kBoardWords>& board(int world_rank, int line) const { return control(world_rank).board[line]; }

  // Makes a part of the own segment private for good, or until the part of the arena that it lies in is used again, so
  // that what peers write that were given up is never read. False when the system refuses.
  bool isolate(const std::byte* data, std::size_t bytes);

  // In a forked child: the memory belongs to the parent, so the destructors here leave the other ranks alone.
  void leave_to_parent();
  bool of_parent() const { return of_parent_; }

  // Publishes to the ranks of this host how many threads of this rank sleep until its doorbell is rung.
  void set_sleeping(int threads);

  // Publishes to the ranks of this host on which core this one runs, and returns what it has published: 1 + the number,
  // 0 when the system does not say.
  std::uint32_t publish_core();
  // Whether world rank w, which is on this host, ran on that core when it published that last.
  bool runs_on(int world_rank, std::uint32_t core) const;
  // How many other ranks of this host did.
  int others_on(std::uint32_t core) const;

  // The control page of the lowest rank of this host, the same for all of them.
  ControlPage& first_page() const;

  // Allocates a segment of zeros in the own arena, marks it with the communicator, and makes sure that there is memory
  // for its first `used` bytes. gone(w): world rank w has ended.
  std::optional<std::size_t> allocate(std::size_t bytes, std::size_t used, std::uint32_t communicator,
                                      const std::function<bool(int)>& gone);
  // Makes sure that there is memory for a part of the heap of this rank; see Memory::reserve.
  void reserve(std::byte* data, std::size_t bytes) const { kind_.reserve(data, bytes); }
  void shrink(std::size_t offset, std::size_t bytes);
  // For a segment that no other rank has ever touched.
  void free(std::size_t offset);
  // Marks the segment as left by this rank, where it is not marked yet.
  void leave(std::size_t offset);
  // The segment of another rank for the same communicator.
  struct Neighbour {
    int rank;  // in the world
    std::size_t offset;
    std::uint32_t communicator;  // with which it is marked
  };
  // Leaves, and uses the segment again when all these ranks have left the communicator.
  void retire(std::size_t offset, std::vector<Neighbour> others);

 private:
  // The page of a rank's segment, and of one in its arena.
  ControlPage& control(int world_rank) const { return *reinterpret_cast<ControlPage*>(bases_[world_rank]); }
  ControlPage& control(int world_rank, std::size_t offset) const;
  struct Retired {
    std::size_t offset;
    std::vector<Neighbour> others;
  };
  void forget_descriptor();
  void reclaim(const std::function<bool(int)>& gone);
  void clear(std::size_t offset);
  void join_again(std::size_t offset);
  bool has_left(const Neighbour& other) const;

  int rank_;
  Limits limits_;
  SegmentLayout layout_;
  const Memory& kind_;
  std::vector<std::byte*> bases_;
  std::vector<int> doorbells_;
  std::shared_ptr<void> owner_;
  int descriptor_;
  bool of_parent_ = false;
  std::mutex mutex_;  // guards what follows
  Arena arena_;
  std::vector<Retired> retired_;
  std::vector<std::pair<std::size_t, std::size_t>> isolated_;  // offset in the segment, and bytes
};

// The segment of one rank for one group, given back when it goes away.
class GroupSegment {
 public:
  GroupSegment(std::shared_ptr<HostMemory> memory, std::size_t offset) : memory_(std::move(memory)), offset_(offset) {}
  ~GroupSegment();
  GroupSegment(const GroupSegment&) = delete;
  GroupSegment& operator=(const GroupSegment&) = delete;

  std::size_t offset() const { return offset_; }
  // All ranks know that the group will not be made, so none will touch the segment.
  void cancel() { cancelled_ = true; }
  // The others know where the segment is; these are theirs.
  void share(std::vector<HostMemory::Neighbour> others);

 private:
  std::shared_ptr<HostMemory> memory_;
  std::size_t offset_;
  bool cancelled_ = false;
  bool shared_ = false;
  std::vector<HostMemory::Neighbour> others_;
};

}  // namespace collectives
