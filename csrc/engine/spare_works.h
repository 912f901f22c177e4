// Works that have ended, by the call that they ran: a call like an earlier one finds what was worked out for that one.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "engine/work.h"

namespace collectives {

// Every key has two places, so that two calls that a program makes in turn do not evict each other.
class SpareWorks {
 public:
  SpareWorks() = default;
  SpareWorks(const SpareWorks&) = delete;
  SpareWorks& operator=(const SpareWorks&) = delete;

  // The place of the work of that key, or of a new work. The work can stay there while it runs, under the lock of the
  // engine.
  std::shared_ptr<Work>& of(const CallKey& key) {
    if (is(*last_, key)) {
      return *last_;
    }
    std::swap(last_, before_);
    if (!is(*last_, key)) {
      last_ = find(key);
    }
    return *last_;
  }

  // Puts back a work that had to leave its place, since other threads could acquire the lock while it ran.
  void put(std::shared_ptr<Work> work) {
    const std::size_t first = place_of(work->key);
    works_[works_[first] == nullptr ? first : first ^ 1] = std::move(work);
  }

 private:
  static constexpr int kPlaceBits = 6;

  static bool is(const std::shared_ptr<Work>& work, const CallKey& key) { return work != nullptr && work->key == key; }

  std::shared_ptr<Work>* find(const CallKey& key) {
    const std::size_t first = place_of(key);
    for (const std::size_t i : {first, first ^ 1}) {
      if (works_[i] != nullptr && works_[i]->key == key) {
        return &works_[i];
      }
    }
    // A work without a key, as a call leaves it that was refused, serves no later call.
    const bool free = works_[first] == nullptr || works_[first]->key.algorithm < 0;
    std::shared_ptr<Work>& place = works_[free ? first : first ^ 1];
    place = std::make_shared<Work>();
    return &place;
  }

  static std::size_t place_of(const CallKey& key) {
    const std::uint64_t mixed =
        key.head * 0x9e3779b97f4a7c15ULL +
        static_cast<std::uint64_t>(key.algorithm + key.input_bytes + key.input_heap_offset) * 0xc2b2ae3d27d4eb4fULL +
        static_cast<std::uint64_t>(key.output_heap_offset) * 0x165667b19e3779f9ULL;
    return mixed >> (64 - kPlaceBits);
  }

  std::shared_ptr<Work> works_[std::size_t{1} << kPlaceBits];
  std::shared_ptr<Work>* last_ = works_;    // most calls are like the one before,
  std::shared_ptr<Work>* before_ = works_;  // or like the one before that
};

}  // namespace collectives
