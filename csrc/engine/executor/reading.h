// Reading the private memory of other ranks of this host: one copy by the kernel (process_vm_readv), where a way
// through bounce buffers takes two.
//
// Ranks only read each other's memory and never write it. A rank that was given up while it was stopped, and that runs
// on later, can then spoil no memory of a survivor: what it reads goes to its own arrays, whose collective has failed.
// Ranks of one process read each other the same way: when one of them has failed, its memory may be gone, which would
// end the process in an ordinary copy, while a system call only reports it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/buffer.h"

namespace collectives {

class Reading {
 public:
  // A rank whose memory is read. pid: as seen here, -1 where it cannot be read. descriptor: a pidfd, readable once the
  // process is dead; -1 for this process.
  struct Source {
    int pid = -1;
    int descriptor = -1;
  };
  // sources[r]: of rank r; the entry of this rank is not used.
  Reading(int rank, std::vector<Source> sources) : rank_(rank), sources_(std::move(sources)) {}

  // Whether the kernel lets this rank read all others. Asked once.
  bool permitted();
  // Whether others read this memory of this rank fast: on large pages. On small ones the kernel takes longer than a way
  // through bounce buffers. Looked up once in a while for each address.
  bool fast(const Span& span);
  // Copies `bytes` from `from` in rank r's process. False when that fails, and when the process is dead: its number may
  // already be that of another process, from which the bytes then came.
  bool read(int r, std::byte* to, std::uint64_t from, std::int64_t bytes);
  // The kernel's last refusal, unless a read has succeeded since: `rank` could not be read, and why (errno). That a
  // process is dead is no refusal.
  struct Refusal {
    int rank = -1;
    int reason = 0;
  };
  const Refusal& refusal() const { return refusal_; }

 private:
  struct Known {
    const std::byte* data = nullptr;
    std::int64_t bytes = 0;
    int uses = 0;
    bool fast = false;
  };
  static constexpr std::size_t kKnown = 64;

  int rank_;
  std::vector<Source> sources_;
  std::optional<bool> permitted_;
  std::array<Known, kKnown> known_;
  Refusal refusal_;
};

}  // namespace collectives
