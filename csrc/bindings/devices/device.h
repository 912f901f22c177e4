// Devices: those that were found, and operations on arrays in their memory. Pointers and streams are integers here.
#pragma once

#include <pybind11/pybind11.h>

namespace collectives {

// Adds the functions whose names begin with `_device`, except those of the other files here, `_reduce_device_replicas`,
// `_PinnedBuffer` and `_DeviceEvent`.
void bind_device(pybind11::module_& m);

}  // namespace collectives
