#include "cuda/kernel.h"

namespace collectives {

const void* kernel_of_bits(const Choice& choice) { return select_bits<Kernels>(choice); }

}  // namespace collectives
