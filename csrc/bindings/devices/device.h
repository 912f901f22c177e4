// Devices: what was found, and work on arrays in their memory. Pointers and handles of streams are integers here.
#pragma once

#include <pybind11/pybind11.h>

namespace collectives {

// Adds `_device_status` and the other functions and classes whose names begin with `_devices.dispatch` or `_Device`.
void bind_device(pybind11::module_& m);

}  // namespace collectives
