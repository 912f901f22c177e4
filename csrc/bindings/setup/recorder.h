// Functions for the recorder and the signal handlers.
#pragma once

#include <pybind11/pybind11.h>

namespace collectives {

void bind_recorder(pybind11::module_& m);

}  // namespace collectives
