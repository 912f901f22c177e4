// Where a rank has set memory aside for its segment in a communicator that is being made, as it tells the others.
#pragma once

#include <cstdint>

namespace collectives {

struct ReservedSegment {
  bool room = true;          // there is memory for it, or it needs none
  bool heap = false;         // it has room for a heap
  std::uint64_t offset = 0;  // in its arena
};

}  // namespace collectives
