// The pages of this system, in which the kernel maps memory and gives it back.
#pragma once

#include <unistd.h>

#include <cstddef>

namespace collectives {

// 4096 on x86-64; kernels for aarch64 are built for 4096, 16384 or 65536.
inline std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// As many bytes, or a few more, that fill whole pages.
inline std::size_t whole_pages(std::size_t bytes, std::size_t page = page_bytes()) {
  return (bytes + page - 1) / page * page;
}

}  // namespace collectives
