// _time_collective() and _time_function(), for the bench.
#pragma once

#include <pybind11/pybind11.h>

namespace collectives {

void bind_timing(pybind11::module_& m);

}  // namespace collectives
