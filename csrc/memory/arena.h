// Which parts of a range of memory are allocated. First fit, in units of pages.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

namespace collectives {

class Arena {
 public:
  static constexpr std::size_t kPage = 4096;
  static std::size_t round_up(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

  explicit Arena(std::size_t bytes) : bytes_(bytes) {}

  // The offset of the lowest gap that has room for so many bytes, at the start of a page; nothing when there is none.
  std::optional<std::size_t> allocate(std::size_t bytes);
  // Gives back what lies behind the first `bytes` of an allocation.
  void shrink(std::size_t offset, std::size_t bytes);
  void free(std::size_t offset);
  // How much the allocation at this offset has.
  std::size_t bytes_at(std::size_t offset) const { return allocated_.at(offset); }

 private:
  std::size_t bytes_;
  std::map<std::size_t, std::size_t> allocated_;  // bytes by offset
};

}  // namespace collectives
