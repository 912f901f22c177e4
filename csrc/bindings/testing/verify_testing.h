// Lets the tests run the verifier over every registered algorithm.
#pragma once

#include <pybind11/pybind11.h>

namespace collectives {

// Adds `_algorithms`, `_unsupported`, `_schedule_text`, `_verify`, `_mutations` and `_survivors`.
void bind_verify_testing(pybind11::module_& m);

}  // namespace collectives
