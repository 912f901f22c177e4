// Allocates room in a vector ahead of an operation that must not fail halfway.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace collectives {

// Afterwards one more element can be put in without an allocation that could fail. The capacity grows as push_back lets
// it, so a vector of n elements is copied a few times, and not n times.
template <typename T, typename Allocator>
void make_room(std::vector<T, Allocator>& elements) {
  if (elements.size() == elements.capacity()) {
    elements.reserve(std::max<std::size_t>(4, 2 * elements.size()));
  }
}

}  // namespace collectives
