// Lets the tests drive every reducer directly.
#pragma once

#include <pybind11/pybind11.h>

namespace collectives {

// Adds `_reduce`, `_scale`, and functions that list instruction sets, dtypes and ops.
void bind_reduce_testing(pybind11::module_& m);

}  // namespace collectives
