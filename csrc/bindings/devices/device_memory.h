// Memory of devices for new arrays of Python.
#pragma once

#include <pybind11/pybind11.h>

namespace collectives {

// Adds `_device_empty` and `_device_table`.
void bind_device_memory(pybind11::module_& m);

}  // namespace collectives
