#pragma once

#include <pybind11/pybind11.h>

namespace collectives {

void bind_device_peers(pybind11::module_& m);

}  // namespace collectives
