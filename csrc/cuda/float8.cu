#include "cuda/kernel.h"

namespace collectives {

const void* kernel_of_float8(const Choice& choice) { return select_float8<Kernels>(choice); }

}  // namespace collectives
