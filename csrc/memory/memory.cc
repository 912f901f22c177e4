#include "memory/memory.h"

#include <sys/mman.h>

#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace collectives {
namespace {

std::vector<Memory>& registry() {
  static std::vector<Memory> memories;
  return memories;
}

}  // namespace

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

RegisterMemory::RegisterMemory(const Memory& memory) { registry().push_back(memory); }

bool memory_is_counted() {
  static const bool counted = [] {
    int mode = 0;
    return std::ifstream("/proc/sys/vm/overcommit_memory") >> mode && mode == 2;
  }();
  return counted;
}

void leave_out_of_dumps(void* data, std::size_t bytes) {
  madvise(data, bytes, MADV_DONTDUMP);  // without it a dump takes longer, no more
}

const Memory& find_memory(std::string_view name) {
  for (const Memory& memory : registry()) {
    if (memory.name == name) {
      return memory;
    }
  }
  throw std::logic_error("no memory kind named " + std::string(name));
}

}  // namespace collectives
