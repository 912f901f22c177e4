// Collectives of ranks that address each other's device memory.
#pragma once

#include <pybind11/pybind11.h>

namespace collectives {

// Adds `_DevicePeers` and `_device_endpoint_bytes`.
void bind_device_peers(pybind11::module_& m);

}  // namespace collectives
