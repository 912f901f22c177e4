// Ordinary memory of one process, for ranks that are threads of it.

#include <sys/mman.h>

#include <cerrno>
#include <system_error>

#include "memory/memory.h"

namespace collectives {
namespace {

int create(std::size_t /*bytes*/) { return -1; }

Mapping map(int /*descriptor*/, std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(),
                            "reserving " + std::to_string(bytes) +
                                " bytes of address space (is it limited by ulimit -v, or by vm.overcommit_memory=2? "
                                "lower COLLECTIVES_SYMMETRIC_HEAP)");
  }
  leave_out_of_dumps(data, bytes);
  return {static_cast<std::byte*>(data), bytes};
}

bool release(std::byte* data, std::size_t bytes) { return madvise(data, bytes, MADV_DONTNEED) == 0; }

// Where the kernel refuses to overcommit memory, mapping it has reserved it.
void reserve(std::byte* /*data*/, std::size_t /*bytes*/) {}

const RegisterMemory registration({"host", "anonymous memory of one process", create, map, release, reserve, nullptr,
                                   nullptr});

}  // namespace
}  // namespace collectives
