#include "cuda/kernel.h"

namespace collectives {

const void* kernel_of_integers(const Choice& choice) { return select_integers<Kernels>(choice); }

}  // namespace collectives
