// The fast path of send and recv.
#pragma once

#include "bindings/arrays/numpy_api.h"
#include "engine/communicator.h"

namespace collectives {

// Communicator._run_message. Messages of other than plain arrays, and wrong arguments, go to the method
// _general_message with the same arguments.
PyObject* run_message(PyObject* self, Communicator& communicator, PyObject* const* args, Py_ssize_t count);

}  // namespace collectives
