// The fast path of send and recv, and what probe needs.
#pragma once

#include <pybind11/pybind11.h>

#include "bindings/arrays/numpy_api.h"
#include "engine/communicator.h"

namespace collectives {

// Communicator._run_message. Messages of other than plain arrays, and wrong arguments, go to the method
// _general_message with the options as one record.
PyObject* run_message(PyObject* self, Communicator& communicator, PyObject* const* args, Py_ssize_t count);

void bind_messages(pybind11::module_& m);

}  // namespace collectives
