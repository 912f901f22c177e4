// Where memory that several ranks address comes from. One kind of memory is one file in csrc/memory/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace collectives {

// A range of address space that its destructor unmaps.
class Mapping {
 public:
  Mapping() = default;
  Mapping(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

struct Memory {
  std::string_view name;  // "host", "memfd"
  std::string_view description;
  // A descriptor by which other processes can map the memory, or -1 when it stays inside this process. Pages are
  // committed on first touch.
  int (*create)(std::size_t bytes);
  // Maps memory made by create() (here or in another process). descriptor -1: new memory.
  Mapping (*map)(int descriptor, std::size_t bytes);
  // Gives whole pages of a mapping back to the system, for all processes that have them mapped; they read as zeros
  // then. False when the system refuses.
  bool (*release)(std::byte* data, std::size_t bytes);
  // Makes sure that there is memory for these bytes of a mapping. Throws std::system_error when there is none, where
  // touching them would end this process with SIGBUS.
  void (*reserve)(std::byte* data, std::size_t bytes);
  // Makes whole pages of a mapping private: what this process writes there from now on, no other process sees or
  // changes. A page is copied when it is first written; before that it still shows what others write. offset: of the
  // pages in the memory. What this process writes meanwhile is not lost. False when the system refuses; nullptr where
  // the memory stays inside one process anyway.
  bool (*make_private)(int descriptor, std::size_t offset, std::byte* data, std::size_t bytes);
  // Undoes that: the pages are those of the memory again.
  bool (*make_shared)(int descriptor, std::size_t offset, std::byte* data, std::size_t bytes);
};

// Whether this system refuses allocations beyond the memory that it has (vm.overcommit_memory is 2). Elsewhere
// reserving would only commit memory that may never be used.
bool memory_is_counted();

// Keeps reserved address space, of which little is used, out of core dumps: the kernel would walk through all of it,
// and the other ranks would notice a crash only when it is done.
void leave_out_of_dumps(void* data, std::size_t bytes);

struct RegisterMemory {
  explicit RegisterMemory(const Memory& memory);
};

// The memory kind of that name; std::logic_error when this build has none.
const Memory& find_memory(std::string_view name);

}  // namespace collectives
