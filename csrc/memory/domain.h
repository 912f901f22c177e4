// A mapped domain: the segments of the ranks that can address each other's memory, and what lies where in them.
//
// Every rank owns one segment; all ranks of the domain have it mapped. Its parts:
//   control   state of the rank that others read: see ControlPage
//   headers   kHeaderLines header lines, that of a collective at place_of_header()
//   flags     kFlags * slots words, each in a cache line of its own, those of a slot together
//   bounce    the bounce buffer: `slots` slots that copies and reductions of peers read and write
//   fifos     two rings of cells to each peer, for messages
//   heap      symmetric memory
//   arena     only in the segments of a world: where the segments of its groups lie, see memory/host_memory.h
//
// Orders of memory. Every word that ranks exchange is one of four kinds (docs/verification.md has the whole argument):
//   publication   one rank writes, by release, and the value only grows; others read by acquire. What the writer did
//                 before, to memory of its own or of others, is then visible to them. No stronger order is needed,
//                 since ranks wait for values that stay: to see two of these words out of order only costs a delay.
//   notice        the same, but set once, or written again for readers that check that what they read is complete:
//                 `aborted`, `left`, `report_bytes`; `caller`, `explained`; `copies` under `edition`.
//   count         read for a decision that may be late, and protects no other memory: `taken`, `core`. Relaxed.
//   sleeper flag  `sleeping`, see Domain::wake.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/signature.h"
#include "memory/pages.h"
#include "schedule/schedule.h"

namespace collectives {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr int kHeaderLines = 16;
inline constexpr int kFifoCells = 4;
inline constexpr std::int64_t kFifoCellBytes = 64 << 10;
inline constexpr std::size_t kReportBytes = 8 << 10;
inline constexpr std::size_t kNoteWords = 512;
inline constexpr std::size_t kBoardWords = 6;
inline constexpr int kBoardLines = 32;

// Payload first, the word that publishes it last; one line, so a small collective costs one transfer between caches.
struct alignas(kCacheLine) HeaderLine {
  std::byte payload[40];
  Signature signature;
  // (sequence + 1) << 8 | number of collectives up to this one that the rank has not completed. A publication: of the
  // rest of the line, of the bounce buffer, and of the fact that this rank has read all that it had to read before.
  std::atomic<std::uint64_t> word;

  // The line that the word is the last part of.
  static HeaderLine& of(std::atomic<std::uint64_t>& word) { return reinterpret_cast<HeaderLine*>(&word + 1)[-1]; }
};
static_assert(sizeof(HeaderLine) == kCacheLine && offsetof(HeaderLine, word) + sizeof(std::uint64_t) == kCacheLine);

// Where the header line of a collective lies, from that of the first on. Lines that follow each other in time are far
// apart, in steps that change: as measured (docs/lab/cache-lines.md). The likely reason is that the
// prefetchers of a rank that looks at a line would also fetch the next one, which its owner is about to write.
inline constexpr std::size_t kHeaderPitch = 256;
constexpr std::size_t place_of_header(std::uint64_t sequence) {
  constexpr std::uint64_t kStep = 7;
  static_assert(kStep % 2 == 1 && (kHeaderLines & (kHeaderLines - 1)) == 0, "every line has its turn");
  return sequence * kStep % kHeaderLines * kHeaderPitch;
}

// Where a schedule chooses, the payload of the header line: whether the input of the rank can be read, and where it
// lies in its process.
struct Offer {
  std::uint64_t input;
  std::uint64_t readable;
};
static_assert(sizeof(Offer) <= sizeof(HeaderLine::payload));

struct alignas(kCacheLine) FlagLine {
  std::atomic<std::uint64_t> value;  // a publication
};

// What the writer of a fifo reads about its reader.
struct alignas(kCacheLine) AckLine {
  std::atomic<std::uint64_t> value;   // cells consumed; a publication, since the writer fills them again
  std::atomic<std::uint64_t> opened;  // mail: messages begun by the writer that the reader has opened; a count
};

// Words that one rank publishes, and publishes again when they have changed. Edition e lies in copies[e % 2], so a rank
// that is killed while it writes leaves the one before.
template <std::size_t kWords>
struct alignas(kCacheLine) PublishedWords {
  std::atomic<std::uint64_t> edition;  // 0: there are none yet
  std::atomic<std::uint64_t> copies[2][kWords];

  // For the owner; at most kWords.
  void publish(const std::vector<std::uint64_t>& words) {
    const std::uint64_t next = edition.load(std::memory_order_relaxed) + 1;
    // Release: a rank that reads a word of this edition in place of the one before the last sees that there is another.
    for (std::size_t i = 0; i < words.size(); ++i) {
      copies[next % 2][i].store(words[i], std::memory_order_release);
    }
    edition.store(next, std::memory_order_release);
  }

  // The first `count` words and their edition, 0 and none when there are none.
  std::pair<std::uint64_t, std::vector<std::uint64_t>> read(std::size_t count) const {
    for (;;) {
      const std::uint64_t current = edition.load(std::memory_order_acquire);
      std::vector<std::uint64_t> words;
      for (std::size_t i = 0; i < count && current != 0; ++i) {
        words.push_back(copies[current % 2][i].load(std::memory_order_acquire));
      }
      if (edition.load(std::memory_order_relaxed) == current) {
        return {current, std::move(words)};
      }
    }
  }
};

struct ControlPage {
  // All collectives numbered below this are complete on this rank. A publication: their lines and slots may be written.
  alignas(kCacheLine) std::atomic<std::uint64_t> completed;
  // How many threads of this rank sleep until its doorbell is rung. Used in the segments of the world only.
  alignas(kCacheLine) std::atomic<std::uint32_t> sleeping;
  // Where ranks outnumber cores: 1 + the number of the core on which the rank ran last. 0: not known. Used in the
  // segments of the world only. A count.
  std::atomic<std::uint32_t> core;
  // Set by any rank when the communicator has failed, after it has left its own report. A notice.
  alignas(kCacheLine) std::atomic<std::uint32_t> aborted;
  // Set by the owner when it leaves in good order: 1 + the number of collectives it took part in. A notice: from then
  // on it touches no memory of others.
  std::atomic<std::uint64_t> left;
  // The number of the communicator whose segment this is. Memory of groups is used again; numbers are not. A
  // publication: of the zeros in the rest of the segment.
  std::atomic<std::uint32_t> communicator;
  // Of a rank that is a thread among others: the kernel's number of the thread that called last. 0: not known. A
  // notice.
  std::atomic<std::uint32_t> caller;
  // In the segments of the world only: which rank's failure has been explained last, and when. See explain.cc. A
  // notice.
  std::atomic<std::uint64_t> explained;
  // For the measurement of the latency between two cores. A publication of nothing.
  alignas(kCacheLine) std::atomic<std::uint64_t> probe;
  // Why the owner failed, valid once report_bytes is not 0. A notice.
  alignas(kCacheLine) std::atomic<std::uint32_t> report_bytes;
  char report[kReportBytes];
  // What the owner publishes while the communicator shrinks: engine/groups/note.h.
  PublishedWords<kNoteWords> note;
  // In the segments of the world only: the groups that the owner makes by their members alone. See
  // engine/groups/board.h.
  PublishedWords<kBoardWords> board[kBoardLines];
};

// Two rings of cells from each rank to each other.
enum class Channel : std::uint8_t {
  kCollective,  // messages of schedules, one collective at a time
  kMail,        // messages that ranks send to each other by themselves
};
inline constexpr int kChannels = 2;

// What a cell of the mail carries.
enum class MailKind : std::uint32_t { kData, kWelcome };

struct alignas(kCacheLine) FifoCell {
  std::atomic<std::uint64_t> word;  // 1 + index of the message piece that is in the cell; a publication
  std::uint64_t sequence;           // of the collective, or of the message
  std::uint64_t bytes;
  Signature signature;
  // Mail only.
  std::uint32_t communicator;
  MailKind kind;
};

struct SegmentLayout {
  SegmentLayout(int size, const Limits& limits, std::size_t heap_bytes, std::size_t arena_bytes = 0,
                std::size_t page = page_bytes());
  std::size_t headers, flags, bounce, slot_stride, acks, fifos, fifo_stride, heap, heap_bytes, arena, arena_bytes,
      total;
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
    return *reinterpret_cast<HeaderLine*>(bases_[rank] + layout_.headers + place_of_header(sequence));
  }
  FlagLine& flag(int rank, int id, std::uint64_t index) const {
    return reinterpret_cast<FlagLine*>(bases_[rank] + layout_.flags)[slot(index) * kFlags + id];
  }
  // pitch: Schedule::slot_pitch.
  std::byte* bounce(int rank, std::uint64_t index, std::int64_t pitch = 0) const {
    return bases_[rank] + layout_.bounce +
           slot(index) * (pitch > 0 ? static_cast<std::size_t>(pitch) : layout_.slot_stride);
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

  // Wakes a rank that sleeps, after something was published for it. Costs one relaxed load when it does not sleep. The
  // sleeper sets its flag, puts a fence behind that and looks again (HostMemory::set_sleeping, Engine::sleep). A fence
  // here, between publication and load, would complete the handshake, but costs every signal of every collective 20 ns.
  // Without it the load may pass the store in the processor's store buffer, for as long as that takes to drain; a wake
  // that races with falling asleep by so little is lost, which is why sleeps are bounded (kSleepMs).
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
