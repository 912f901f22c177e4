// NCCL: what is found of it, and its side of a communicator.
#pragma once

#include <pybind11/pybind11.h>

namespace collectives {

void bind_nccl(pybind11::module_& m);

}  // namespace collectives
