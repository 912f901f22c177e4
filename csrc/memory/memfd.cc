// Memory without a name: memfd_create. Nothing appears in the file system, no tmpfs size limit applies, and the kernel
// frees it with the last process that has it, however that process ends.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>

#include "memory/memory.h"
#include "memory/pages.h"

namespace collectives {
namespace {

int create(std::size_t bytes) {
  const int descriptor = memfd_create("collectives", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) {
    const bool full = errno == EMFILE || errno == ENFILE;
    throw std::system_error(errno, std::generic_category(),
                            full ? "memfd_create (raise the limit of open files, or set COLLECTIVES_TRANSPORT=tcp)"
                                 : "memfd_create (a sandbox may refuse it, and Linux has it since 3.17; set "
                                   "COLLECTIVES_TRANSPORT to auto or tcp)");
  }
  // Sealed against resizing: a peer that shrank the file would turn our accesses into SIGBUS.
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0 ||
      fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const int error = errno;
    close(descriptor);
    throw std::system_error(error, std::generic_category(),
                            "sizing a segment of " + std::to_string(bytes) +
                                " bytes (is the size of files limited by ulimit -f? lower COLLECTIVES_SYMMETRIC_HEAP, "
                                "or set COLLECTIVES_TRANSPORT=tcp)");
  }
  return descriptor;
}

Mapping map(int descriptor, std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  if (data == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(),
                            "mapping a segment of " + std::to_string(bytes) +
                                " bytes (is the address space limited by ulimit -v? lower COLLECTIVES_SYMMETRIC_HEAP)");
  }
  leave_out_of_dumps(data, bytes);
  return {static_cast<std::byte*>(data), bytes};
}

// Punches a hole, which the seals allow.
bool release(std::byte* data, std::size_t bytes) { return madvise(data, bytes, MADV_REMOVE) == 0; }

void reserve(std::byte* data, std::size_t bytes) {
#ifndef MADV_POPULATE_WRITE
  constexpr int MADV_POPULATE_WRITE = 23;
#endif
  const auto begin = reinterpret_cast<std::uintptr_t>(data) / page_bytes() * page_bytes();
  const std::size_t length = reinterpret_cast<std::uintptr_t>(data) + bytes - begin;
  int result = 0;
  do {
    result = madvise(reinterpret_cast<void*>(begin), length, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result != 0 && errno != EINVAL) {  // EINVAL: a kernel older than 5.14, which cannot
    throw std::system_error(ENOMEM, std::generic_category(),
                            "no memory for " + std::to_string(bytes) + " bytes of a segment (" + std::strerror(errno) +
                                "; vm.overcommit_memory is 2 here: raise vm.overcommit_ratio, or use fewer ranks)");
  }
}

bool map_over(int descriptor, std::size_t offset, std::byte* data, std::size_t bytes, int how) {
  if (mmap(data, bytes, PROT_READ | PROT_WRITE, how | MAP_FIXED | MAP_NORESERVE, descriptor,
           static_cast<off_t>(offset)) == MAP_FAILED) {
    return false;
  }
  leave_out_of_dumps(data, bytes);
  return true;
}

// A private mapping of the same file: a page is copied when this process first writes to it. So nothing is lost that
// another thread writes at this moment, and pages that are never written cost nothing. Until its first write a page
// still shows what others write there: docs/reliability.md says which arrays that can be.
bool make_private(int descriptor, std::size_t offset, std::byte* data, std::size_t bytes) {
  return map_over(descriptor, offset, data, bytes, MAP_PRIVATE);
}

bool make_shared(int descriptor, std::size_t offset, std::byte* data, std::size_t bytes) {
  return map_over(descriptor, offset, data, bytes, MAP_SHARED);
}

const RegisterMemory registration({"memfd", "memory passed between processes by descriptor", create, map, release,
                                   reserve, make_private, make_shared});

}  // namespace
}  // namespace collectives
