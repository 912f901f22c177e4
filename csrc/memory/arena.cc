#include "memory/arena.h"

#include <stdexcept>

namespace collectives {

std::optional<std::size_t> Arena::allocate(std::size_t bytes) {
  bytes = whole_pages(bytes, page_);
  std::size_t end = 0;  // of the allocation before the gap
  for (const auto& [offset, length] : allocated_) {
    if (offset - end >= bytes) {
      break;
    }
    end = offset + length;
  }
  if (bytes == 0 || bytes > bytes_ || end > bytes_ - bytes) {
    return std::nullopt;
  }
  allocated_[end] = bytes;
  return end;
}

void Arena::shrink(std::size_t offset, std::size_t bytes) {
  std::size_t& length = allocated_.at(offset);
  bytes = whole_pages(bytes, page_);
  if (bytes == 0 || bytes > length) {
    throw std::logic_error("an allocation can only be made smaller");
  }
  length = bytes;
}

void Arena::free(std::size_t offset) {
  if (allocated_.erase(offset) == 0) {
    throw std::logic_error("nothing is allocated at this offset");
  }
}

}  // namespace collectives
