// _core.Work: the handle of a collective in flight.
#pragma once

#include <pybind11/pybind11.h>

#include "engine/communicator.h"

namespace collectives {

void bind_work(pybind11::module_& m);

// Communicator._start, _start_negotiated and _start_message: start a call by the arguments that they name, and return
// its _core.Work.
PyObject* start_collective(PyObject* self, Communicator& communicator, PyObject* const* args, Py_ssize_t count);
PyObject* start_negotiated(PyObject* self, Communicator& communicator, PyObject* const* args, Py_ssize_t count);
PyObject* start_message(PyObject* self, Communicator& communicator, PyObject* const* args, Py_ssize_t count);

// Starts an asynchronous call and returns its collectives.Work, whose result is `result`. It holds the memory of `x`
// and `out`: each a plain array, a tuple of them, or nullptr. `call` is a copy, since this runs Python code before it
// uses it, which may make another call.
PyObject* start_call(Communicator& communicator, PyObject* owner, Call call, PyObject* x, PyObject* out,
                     PyObject* result);

// Works whose handles are dropped while they are in flight are kept until they are done. Releases those that are done.
void release_dropped();
// Waits for those of a communicator that is to be closed, and for works with callbacks: until what they send is sent,
// and a few seconds at most for messages that they receive.
void finish_unattended(Communicator& communicator);

}  // namespace collectives
