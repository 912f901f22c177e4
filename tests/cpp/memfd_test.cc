// No process that has the descriptor of a segment can change its length: one that touched what is gone would die by
// SIGBUS.

#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "memory/memory.h"

int main() {
  constexpr std::size_t kBytes = 1 << 16;
  const int descriptor = collectives::find_memory("memfd").create(kBytes);
  int wrong = 0;
  for (const std::size_t bytes : {std::size_t{0}, kBytes / 2, 2 * kBytes}) {
    errno = 0;
    if (ftruncate(descriptor, static_cast<off_t>(bytes)) == 0 || errno != EPERM) {
      std::fprintf(stderr, "FAILED: a segment of %zu bytes can be made one of %zu\n", kBytes, bytes);
      ++wrong;
    }
  }
  close(descriptor);
  return wrong == 0 ? 0 : 1;
}
