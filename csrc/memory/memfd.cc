// Memory without a name: memfd_create. Nothing appears in the file system, no tmpfs size limit applies, and the kernel
// frees it with the last process that has it, however that process ends.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/memory.h"

namespace collectives {
namespace {

int create(std::size_t bytes) {
  const int descriptor = memfd_create("collectives", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) {
    throw std::system_error(errno, std::generic_category(),
                            "memfd_create (raise the limit of open files, or set COLLECTIVES_TRANSPORT=tcp)");
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
  return {static_cast<std::byte*>(data), bytes};
}

// Punches a hole, which the seals allow.
bool release(std::byte* data, std::size_t bytes) { return madvise(data, bytes, MADV_REMOVE) == 0; }

const RegisterMemory registration({"memfd", "memory passed between processes by descriptor", create, map, release});

}  // namespace
}  // namespace collectives
