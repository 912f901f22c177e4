// Arrays handed to and taken from other libraries as capsules of DLPack.
#pragma once

#include <pybind11/pybind11.h>

namespace collectives {

// Adds `_to_dlpack` and `_look_at_dlpack`.
void bind_dlpack(pybind11::module_& m);

}  // namespace collectives
