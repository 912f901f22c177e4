// The shapes of the tensors of a call, about which ranks have to agree, and not only about lengths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/hash.h"

namespace collectives {

class Shapes {
 public:
  // Of each tensor, the number of dimensions, then these.
  const std::vector<std::int64_t>& values() const { return values_; }

  // 0 where every tensor has one dimension: their lengths, which ranks compare anyway, say all.
  std::uint64_t hash() const { return flat_ ? 0 : hash_; }

  void add(std::span<const std::int64_t> shape) {
    if (at_ < values_.size()) {
      if (has(at_, shape)) [[likely]] {
        at_ += shape.size() + 1;
        return;
      }
      cut();
    }
    append(shape);
  }

  // Begins another list in the place of this one; finish() completes it. Most calls have the shapes of the call before,
  // and cost no more than the comparison.
  void restart() { at_ = 0; }
  void finish() {
    if (at_ < values_.size()) {
      cut();
    }
  }

  // The same of one tensor.
  void assign(std::span<const std::int64_t> shape) {
    if (values_.size() != shape.size() + 1 || !has(0, shape)) [[unlikely]] {
      restart();
      add(shape);
      finish();
    }
  }

  void clear() {
    restart();
    finish();
  }

 private:
  // Whether this shape is the one at that place. A loop, since a call of memcmp would take longer than the comparison.
  bool has(std::size_t at, std::span<const std::int64_t> shape) const {
    const std::int64_t* const there = values_.data() + at;
    bool same = there[0] == static_cast<std::int64_t>(shape.size());
    for (std::size_t i = 0; same && i < shape.size(); ++i) {
      same = there[i + 1] == shape[i];
    }
    return same;
  }
  void append(std::span<const std::int64_t> shape);
  void cut();

  std::vector<std::int64_t> values_;
  std::size_t at_ = 0;  // where the next tensor goes, or stands already
  std::uint64_t hash_ = kHashStart;
  bool flat_ = true;
};

}  // namespace collectives
