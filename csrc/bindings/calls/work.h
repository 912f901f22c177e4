// _core.Work: the handle of a collective in flight.
#pragma once

#include <pybind11/pybind11.h>

#include "engine/communicator.h"

namespace collectives {

void bind_work(pybind11::module_& m);

// Communicator._start and _start_message: start a call by the arguments that they name, and return its _core.Work.
PyObject* start_general(Communicator& communicator, PyObject* owner, PyObject* args);
PyObject* start_message(Communicator& communicator, PyObject* owner, PyObject* args);

// Starts an asynchronous call and returns its collectives.Work, whose result is `result`. It holds the memory of `x`
// and `out`: each a plain array, a tuple of them, or nullptr. `call` is a copy, since this runs Python code before it
// uses it, which may make another call.
PyObject* start_call(Communicator& communicator, PyObject* owner, Call call, PyObject* x, PyObject* out,
                     PyObject* result);

// Works whose handles are dropped while they are in flight are kept until they are done. Releases those that are done.
void release_dropped();
// Waits for those of a communicator that is to be closed: until what they send is sent, and a few seconds at most for
// messages that they receive.
void finish_dropped(Communicator& communicator);

}  // namespace collectives
