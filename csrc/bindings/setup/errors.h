// C++ errors as Python exceptions, one to one.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace collectives {

// Makes pybind11 translate the errors of core/error.h.
void register_errors();

// Names what has interrupted a wait, by the Python error that a signal handler has raised and that is set.
std::string interruption();

// Sets the Python error for the C++ exception that is being handled; for functions outside pybind11.
void set_python_error();

}  // namespace collectives
