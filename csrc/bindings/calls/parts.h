// The fast path of the collectives of parts.
#pragma once

#include "bindings/arrays/numpy_api.h"
#include "engine/communicator.h"

namespace collectives {

// Communicator._run_parts. What is no blocking call on one plain array in parts of one length, or is wrong by itself,
// goes to the method _general_parts, with the same arguments. Who gets from scatter has no array, and learns of it
// here.
PyObject* run_parts(PyObject* self, Communicator& communicator, PyObject* const* args, Py_ssize_t count);

}  // namespace collectives
