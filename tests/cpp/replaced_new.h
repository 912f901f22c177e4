// Replaces the allocation of a whole test program: every operator new first calls `before_allocation`, which the test
// defines, and which may count, or throw std::bad_alloc. To be included by one file of a program. None is inlined: GCC
// would take the malloc() in one and the free() in the other for a mismatch of new and free().
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

void before_allocation(std::size_t bytes);

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  before_allocation(bytes);
  if (void* memory = std::malloc(bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return operator new(bytes); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }
