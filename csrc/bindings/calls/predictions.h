// What the library expects of each algorithm, for `explain` and for tests.
#pragma once

#include <pybind11/pybind11.h>

namespace collectives {

void bind_predictions(pybind11::module_& m);

}  // namespace collectives
