// A mapped domain: the segments of the ranks that can address each other's memory, and what lies where in them.
//
// Every rank owns one segment; all ranks of the domain have it mapped. Its parts:
//   control   state of the rank that others read or ring: see ControlPage
//   headers   kHeaderLines header lines, the line of collective s at s % kHeaderLines
//   flags     kFlags * slots words, each in a cache line of its own
//   box       `slots` slots that copies and reductions of peers read and write
//   fifos     two rings of cells to each peer, for messages
//   heap      symmetric memory
//   arena     only in the segments of a world: where the segments of its groups lie, see runtime/host_memory.h
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/schedule.h"
#include "core/signature.h"

namespace collectives {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr int kHeaderLines = 16;
inline constexpr int kFifoCells = 4;
inline constexpr std::int64_t kFifoCellBytes = 64 << 10;
inline constexpr std::size_t kReportBytes = 8 << 10;
inline constexpr std::size_t kNoteWords = 512;

// Payload first, the word that publishes it last; one line, so a small collective costs one transfer between caches.
struct alignas(kCacheLine) HeaderLine {
  std::byte payload[40];
  Signature signature;
  // (sequence + 1) << 8 | number of collectives up to this one that the rank has not completed. The release store of
  // this word publishes the rest of the line.
  std::atomic<std::uint64_t> word;
};
static_assert(sizeof(HeaderLine) == kCacheLine);

struct alignas(kCacheLine) FlagLine {
  std::atomic<std::uint64_t> value;
};

// What the reader of a fifo tells its writer.
struct alignas(kCacheLine) AckLine {
  std::atomic<std::uint64_t> value;  // cells consumed
  std::atomic<std::uint64_t> taken;  // mail: messages begun by the writer that the reader has asked for
};

struct ControlPage {
  // All collectives numbered below this are complete on this rank.
  alignas(kCacheLine) std::atomic<std::uint64_t> completed;
  // How many threads of this rank sleep until its doorbell is rung. Used in the segments of the world only.
  alignas(kCacheLine) std::atomic<std::uint32_t> sleeping;
  // Set by any rank when the communicator has failed.
  alignas(kCacheLine) std::atomic<std::uint32_t> aborted;
  // Set by the owner when it leaves in good order: 1 + the number of collectives it took part in.
  std::atomic<std::uint64_t> left;
  // The number of the communicator whose segment this is. Memory of groups is used again; numbers are not.
  std::atomic<std::uint32_t> communicator;
  // For the measurement of the latency between two cores.
  alignas(kCacheLine) std::atomic<std::uint64_t> probe;
  // Why the owner failed, valid once report_bytes is not 0.
  alignas(kCacheLine) std::atomic<std::uint32_t> report_bytes;
  char report[kReportBytes];
  // What the owner says while the communicator shrinks (runtime/note.h): note v lies in notes[v % 2], so a rank that is
  // killed while it writes leaves the one before.
  alignas(kCacheLine) std::atomic<std::uint64_t> note_version;
  std::atomic<std::uint64_t> notes[2][kNoteWords];
};

// Two rings of cells from each rank to each other.
enum class Channel : std::uint8_t {
  kCollective,  // messages of schedules, one collective at a time
  kMail,        // messages that ranks send to each other by themselves
};
inline constexpr int kChannels = 2;

// What a cell of the mail says.
enum class MailKind : std::uint32_t { kData, kWelcome };

struct alignas(kCacheLine) FifoCell {
  std::atomic<std::uint64_t> word;  // 1 + index of the message piece that is in the cell
  std::uint64_t sequence;           // of the collective, or of the message
  std::uint64_t bytes;
  Signature signature;
  // Mail only.
  std::uint32_t communicator;
  MailKind kind;
};

struct SegmentLayout {
  SegmentLayout(int size, const Limits& limits, std::size_t heap_bytes, std::size_t arena_bytes = 0);
  std::size_t headers, flags, box, slot_stride, acks, fifos, fifo_stride, heap, heap_bytes, arena, arena_bytes, total;
};

class Domain {
 public:
  // bases[r]: the segment of rank r, nullptr where r is not in the domain. doorbells[r]: an eventfd, -1 where there is
  // none. Both belong to `owner`. sleeping[r]: the word of rank r that says whether its doorbell needs to be rung, by
  // default the one in its control page.
  Domain(int rank, const Limits& limits, SegmentLayout layout, std::vector<std::byte*> bases,
         std::vector<int> doorbells, std::shared_ptr<void> owner,
         std::vector<const std::atomic<std::uint32_t>*> sleeping = {});
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(bases_.size()); }
  bool has(int rank) const { return bases_[rank] != nullptr; }
  const Limits& limits() const { return limits_; }
  const SegmentLayout& layout() const { return layout_; }

  ControlPage& control(int rank) const { return *reinterpret_cast<ControlPage*>(bases_[rank]); }
  HeaderLine& header(int rank, std::uint64_t sequence) const {
    return reinterpret_cast<HeaderLine*>(bases_[rank] + layout_.headers)[sequence % kHeaderLines];
  }
  FlagLine& flag(int rank, int id, std::uint64_t index) const {
    return reinterpret_cast<FlagLine*>(bases_[rank] + layout_.flags)[id * limits_.slots + slot(index)];
  }
  std::byte* box(int rank, std::uint64_t index) const {
    return bases_[rank] + layout_.box + slot(index) * layout_.slot_stride;
  }
  // The header line and the payload of a cell of the fifo from one rank to another.
  FifoCell& cell(int from, int to, std::uint64_t index, Channel channel = Channel::kCollective) const {
    return *reinterpret_cast<FifoCell*>(fifo(from, to, channel) + (index % kFifoCells) * kCacheLine);
  }
  std::byte* cell_data(int from, int to, std::uint64_t index, Channel channel = Channel::kCollective) const {
    return fifo(from, to, channel) + kFifoCells * kCacheLine + (index % kFifoCells) * kFifoCellBytes;
  }
  // Of the fifo from `from` to `to`; lies in the segment of `to`.
  AckLine& ack(int from, int to, Channel channel = Channel::kCollective) const {
    return reinterpret_cast<AckLine*>(bases_[to] + layout_.acks)[from * kChannels + static_cast<int>(channel)];
  }
  std::byte* heap(int rank) const { return bases_[rank] + layout_.heap; }
  std::size_t heap_bytes() const { return layout_.heap_bytes; }

  // Offset in the heap of this rank, or -1 when the range does not lie in it.
  std::int64_t heap_offset(const void* data, std::int64_t bytes) const {
    const std::uintptr_t offset =
        reinterpret_cast<std::uintptr_t>(data) - reinterpret_cast<std::uintptr_t>(heap(rank_));
    const bool inside = offset < layout_.heap_bytes && static_cast<std::size_t>(bytes) <= layout_.heap_bytes - offset;
    return inside ? static_cast<std::int64_t>(offset) : -1;
  }

  // Wakes a rank that sleeps. Costs one load when it does not. A wake that races with falling asleep may be lost, which
  // is why sleeps are bounded.
  void wake(int rank) const {
    if (sleeping_[rank]->load(std::memory_order_relaxed) != 0) {
      ring(rank);
    }
  }
  void ring(int rank) const;

 private:
  std::byte* fifo(int from, int to, Channel channel) const {
    return bases_[from] + layout_.fifos + (to * kChannels + static_cast<int>(channel)) * layout_.fifo_stride;
  }
  std::uint64_t slot(std::uint64_t index) const { return index & slot_mask_; }

  int rank_;
  Limits limits_;
  std::uint64_t slot_mask_;
  SegmentLayout layout_;
  std::vector<std::byte*> bases_;
  std::vector<int> doorbells_;
  std::vector<const std::atomic<std::uint32_t>*> sleeping_;
  std::shared_ptr<void> owner_;
};

}  // namespace collectives
