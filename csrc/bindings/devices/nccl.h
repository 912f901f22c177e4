// NCCL: the library that was found, and NCCL's communicators.
#pragma once

#include <pybind11/pybind11.h>

namespace collectives {

void bind_nccl(pybind11::module_& m);

}  // namespace collectives
