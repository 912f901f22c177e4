#include "core/shapes.h"

namespace collectives {

void Shapes::append(std::span<const std::int64_t> shape) {
  const auto put = [&](std::int64_t value) {
    values_.push_back(value);
    hash_ = hash_with(hash_, value);
  };
  put(static_cast<std::int64_t>(shape.size()));
  for (const std::int64_t dimension : shape) {
    put(dimension);
  }
  flat_ = flat_ && shape.size() == 1;
  at_ = values_.size();
}

// Drops the tensors from at_ on.
void Shapes::cut() {
  values_.resize(at_);
  hash_ = kHashStart;
  for (const std::int64_t value : values_) {
    hash_ = hash_with(hash_, value);
  }
  flat_ = true;
  for (std::size_t i = 0; i < values_.size(); i += static_cast<std::size_t>(values_[i]) + 1) {
    flat_ = flat_ && values_[i] == 1;
  }
}

}  // namespace collectives
