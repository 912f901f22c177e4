// The fast path of the vector collectives.
#pragma once

#include "bindings/arrays/numpy_api.h"
#include "engine/communicator.h"

namespace collectives {

// Communicator._run_vector. Makes blocking calls on one plain array whose parts all have the same length. All others,
// and calls with wrong arguments, go to the method _general_vector with the options as one record. In a scatter only
// the root has an array; the other ranks receive its layout here.
PyObject* run_vector(PyObject* self, Communicator& communicator, PyObject* const* args, Py_ssize_t count);

}  // namespace collectives
