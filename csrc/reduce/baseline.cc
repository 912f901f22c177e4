// The reducer that every machine of the architecture has: SSE2 on x86-64, NEON on aarch64.
#define COLLECTIVES_VECTOR_BYTES 16
#include "reduce/kernels.h"

namespace collectives {
namespace {

bool supported() { return true; }

const RegisterReducer registration({"baseline", 0, supported, kernel, scale});

}  // namespace
}  // namespace collectives
