// The words in mapped memory that ranks publish and wait for: header lines, which open a collective and carry its
// signature, and the flags of chunks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "cpu/spin.h"
#include "engine/executor/look_tactics.h"
#include "engine/executor/progress.h"
#include "engine/executor/signature_check.h"
#include "engine/work.h"
#include "memory/domain.h"
#include "recorder/recorder.h"

namespace collectives {

class FlagWords {
 public:
  // size: of the communicator. domain: nullptr where no rank is mapped. check: keeps the rank whose signature differs.
  FlagWords(int rank, int size, const Domain* domain, const Recorder& recorder, SignatureCheck& check);

  // The other ranks of the domain.
  const std::vector<int>& mapped_peers() const { return mapped_peers_; }
  // The highest number of completed collectives that rank r is known to have reached.
  std::vector<std::uint64_t>& peers_completed() { return peers_completed_; }

  // The own header line, for schedules none of whose steps publishes it. completed: Executor::completed.
  void publish_header(const Work& work, std::uint64_t completed) {
    publish_header(work, domain_->header(rank_, work.sequence), completed);
  }

  // What a step publishes when it is done.
  void signal(Work& work, const FlagPlace& flag, std::uint64_t completed) {
    if (flag.is_header) {
      publish_header(work, HeaderLine::of(flag.word(work.bases)), completed);
      // From here on the others can go on: other work of this rank costs time only that it waits anyway.
      tactics_.prefetch_ahead(work);
      return;
    }
    const std::uint64_t index = work.base + flag.chunk + work.iteration;
    // Release: what the step has written into bounce buffers or arrays is visible to a rank that sees the flag, and
    // what the step has read is read, so that such a rank may overwrite it.
    flag.word(work.bases).store(index + 1, std::memory_order_release);
    wake_peers();
  }

  // Looks until the flag is there, or `spins` more looks were in vain. first: the step has awaited no other before.
  Look await(const Work& work, const FlagPlace& flag, bool first, int spins) {
    std::atomic<std::uint64_t>& word = flag.word(work.bases);
    if (flag.is_header && first && spins > 1) {
      tactics_.wait_before_look(work);
    }
    // Acquire in every look: none is known in advance to be the last. On x86 it is a plain load. What the rest of a
    // header line holds, and whatever its rank had to read, was written and read before its word.
    std::uint64_t value = 0;
    int looks = 0;
    const auto seen = [&](auto there) {
      for (; value = word.load(std::memory_order_acquire), !there(); ++looks) {
        if (looks == spins) {
          return false;
        }
        relax();
      }
      return true;
    };
    if (flag.is_header) {
      const bool there = seen([&] { return value >> 8 == work.sequence + 1; });
      tactics_.looked(looks);
      return there ? compare_header(work, flag.member, HeaderLine::of(word), value) : Look::kNotYet;
    }
    const std::uint64_t index = work.base + flag.chunk + work.iteration;
    return seen([&] { return value > index; }) ? Look::kThere : Look::kNotYet;
  }

  // After a wait for other ranks, before the step goes on.
  void own_next_lines(const Work& work) const { tactics_.own_next_lines(work); }

  // Adds the ranks whose flags the current step of the work still waits for.
  void add_missing(const Work& work, std::vector<int>& ranks) const;
  // Compares the header lines of all mapped ranks that are there; true when one differs.
  bool find_mismatch(const Work& work);

 private:
  void publish_header(const Work& work, HeaderLine& line, std::uint64_t completed) {
    line.signature = work.signature;
    const std::uint64_t incomplete = work.sequence + 1 - completed;
    // Release: the payload or the slot, and the signature, before the word.
    line.word.store((work.sequence + 1) << 8 | incomplete, std::memory_order_release);
    wake_peers();
  }
  // word: that of the line, which is of this collective.
  Look compare_header(const Work& work, int member, const HeaderLine& line, std::uint64_t word) {
    peers_completed_[member] = std::max(peers_completed_[member], work.sequence + 1 - (word & 0xff));
    return check_.differs(member, line.signature, work) ? Look::kDiffers : Look::kThere;
  }
  void wake_peers() const {
    for (const int r : mapped_peers_) {
      domain_->wake(r);
    }
  }

  int rank_;
  const Domain* domain_;
  std::vector<int> mapped_peers_;
  std::vector<std::uint64_t> peers_completed_;
  LookTactics tactics_;
  SignatureCheck& check_;
};

}  // namespace collectives
