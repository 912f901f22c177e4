// Arrays exported to and imported from other libraries as DLPack capsules.
#pragma once

#include <pybind11/pybind11.h>

namespace collectives {

// Adds `_to_dlpack` and `_read_dlpack`.
void bind_dlpack(pybind11::module_& m);

}  // namespace collectives
