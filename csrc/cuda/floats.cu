#include "cuda/kernel.h"

namespace collectives {

const void* kernel_of_floats(const Choice& choice) { return select_floats<Kernels>(choice); }

}  // namespace collectives
