// Which parts of a range of memory are allocated. First fit, in units of pages: what is released must share none.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

#include "memory/pages.h"

namespace collectives {

class Arena {
 public:
  explicit Arena(std::size_t bytes, std::size_t page = page_bytes()) : bytes_(bytes), page_(page) {}

  // The offset of the lowest gap that has room for so many bytes, at the start of a page; nothing when there is none.
  std::optional<std::size_t> allocate(std::size_t bytes);
  // Gives back what lies behind the first `bytes` of an allocation.
  void shrink(std::size_t offset, std::size_t bytes);
  void free(std::size_t offset);
  // How much the allocation at this offset has.
  std::size_t bytes_at(std::size_t offset) const { return allocated_.at(offset); }

 private:
  std::size_t bytes_;
  std::size_t page_;
  std::map<std::size_t, std::size_t> allocated_;  // bytes by offset
};

}  // namespace collectives
