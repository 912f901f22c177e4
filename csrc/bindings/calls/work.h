// _core.Work: the handle of a collective in flight.
#pragma once

#include <pybind11/pybind11.h>

#include "engine/communicator.h"

namespace collectives {

void bind_work(pybind11::module_& m);

// Communicator._start: (collective, inputs, outputs, op, root, algorithm, deterministic, timeout, name, is_async) to a
// Work.
PyObject* start_general(Communicator& communicator, PyObject* owner, PyObject* args);
PyObject* start_message(Communicator& communicator, PyObject* owner, PyObject* args);

// Starts an asynchronous call and returns its collectives.Work, whose result is `result`. It holds the memory of `x`
// and `out`: each a plain array, a tuple of them, or nothing. `call` is a copy, since this runs Python before it is
// used.
PyObject* start_call(Communicator& communicator, PyObject* owner, Call call, PyObject* x, PyObject* out,
                     PyObject* result);

// Lets go of what works held whose handles were dropped before they were over, as far as they are over now.
void release_dropped();
// Waits for those of a communicator that is to be closed. What was handed over to be sent is sent; what was to be
// received comes, too, if it comes within a few seconds.
void finish_dropped(Communicator& communicator);

}  // namespace collectives
