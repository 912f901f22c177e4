// C++ errors as Python exceptions, one to one.
#pragma once

#include <pybind11/pybind11.h>

namespace collectives {

// Makes pybind11 translate the errors of core/error.h.
void register_errors();

// Sets the Python error for the C++ exception that is being handled; for functions outside pybind11.
void set_python_error();

}  // namespace collectives
