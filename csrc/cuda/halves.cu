#include "cuda/kernel.h"

namespace collectives {

const void* kernel_of_halves(const Choice& choice) { return select_halves<Kernels>(choice); }

}  // namespace collectives
