// Lets the tests drive every reducer directly.
#pragma once

#include <pybind11/pybind11.h>

namespace collectives {

// Adds `_isas()` and `_reduce(isa, dtype, op, finish, divisor, sources, destinations, count)`.
void bind_reduce_testing(pybind11::module_& m);

}  // namespace collectives
