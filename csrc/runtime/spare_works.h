// Works that ended, by what they ran: a call like an earlier one finds all that was worked out for that one.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "runtime/work.h"

namespace collectives {

// Every key has two places, so that two calls that a program makes in turn do not drive each other out.
class SpareWorks {
 public:
  // The work of that key, or a new one.
  std::shared_ptr<Work> take(const CallKey& key) {
    const std::size_t first = place_of(key);
    for (const std::size_t i : {first, first ^ 1}) {
      if (works_[i] != nullptr && works_[i]->key == key) {
        return std::move(works_[i]);
      }
    }
    return std::make_shared<Work>();
  }

  void put(std::shared_ptr<Work> work) {
    const std::size_t first = place_of(work->key);
    works_[works_[first] == nullptr ? first : first ^ 1] = std::move(work);
  }

 private:
  static constexpr int kPlaceBits = 6;

  static std::size_t place_of(const CallKey& key) {
    const std::uint64_t mixed =
        key.head * 0x9e3779b97f4a7c15ULL +
        static_cast<std::uint64_t>(key.algorithm + key.input_bytes + key.input_heap_offset) * 0xc2b2ae3d27d4eb4fULL +
        static_cast<std::uint64_t>(key.output_heap_offset) * 0x165667b19e3779f9ULL;
    return mixed >> (64 - kPlaceBits);
  }

  std::shared_ptr<Work> works_[std::size_t{1} << kPlaceBits];
};

}  // namespace collectives
