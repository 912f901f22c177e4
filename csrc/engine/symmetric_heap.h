// The part of this rank's shared memory that symmetric arrays lie in.
#pragma once

#include <cstddef>

#include "engine/members.h"
#include "memory/domain.h"
#include "memory/host_memory.h"

namespace collectives {

class SymmetricHeap {
 public:
  // domain: nullptr where no rank is mapped; then there is no heap.
  SymmetricHeap(const Domain* domain, HostMemory* memory, const Members& members)
      : domain_(domain), memory_(memory), members_(members) {}

  // This many bytes from its start are in use by now.
  void use(std::size_t bytes);
  // Makes it private, now and for what is used later: a rank that was given up may be in the middle of writing into
  // symmetric arrays, and may go on much later.
  void isolate();

 private:
  void isolate_from(std::size_t begin);

  const Domain* domain_;
  HostMemory* memory_;
  const Members& members_;
  std::size_t used_ = 0;
  bool isolated_ = false;
};

}  // namespace collectives
