// The fast path of all_gather, reduce_scatter and all_to_all.
#pragma once

#include "bindings/numpy_api.h"
#include "runtime/communicator.h"

namespace collectives {

// Communicator._even_parts: (collective, x, op, out, counts, deterministic) to the result. NotImplemented, a new
// reference, where the call is none on one plain array in parts of one length, or is wrong by itself: nothing has been
// done then, and the general path goes on from the beginning.
PyObject* even_parts(PyObject* self, Communicator& communicator, PyObject* const* args, Py_ssize_t count);

}  // namespace collectives
