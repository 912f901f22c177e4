// _core.Work: the handle of a collective in flight.
#pragma once

#include <pybind11/pybind11.h>

#include "runtime/communicator.h"

namespace collectives {

void bind_work(pybind11::module_& m);

// Communicator._start: (collective, inputs, outputs, op, root, algorithm, deterministic, timeout, name, is_async) to a
// Work.
PyObject* start_general(Communicator& communicator, PyObject* owner, PyObject* args);
PyObject* start_message(Communicator& communicator, PyObject* owner, PyObject* args);

}  // namespace collectives
