// _core.Communicator: a type written without pybind11, whose calls would cost more than a small collective.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "engine/communicator.h"

namespace collectives {

// Adds the type Communicator, and functions that work on communicators.
void bind_communicator(pybind11::module_& m);

// A capsule from which _core.Communicator(...) takes ownership.
pybind11::object make_handle(std::unique_ptr<Communicator> communicator);

// The communicator inside a _core.Communicator; ArgumentTypeError for any other object.
Communicator& communicator_of(pybind11::handle object);

// The same with shared ownership.
std::shared_ptr<Communicator> shared_communicator_of(pybind11::handle object);

// Runs a call on arrays that the caller holds, and waits for its end. False, with Python's exception set, where it
// fails.
bool run_to_end(Communicator& communicator, const Call& call);

// Waits with the interpreter unlocked, and lets signal handlers run now and then. False, with Python's exception set,
// where one raised, as that of Ctrl-C does.
bool wait_interruptibly(Communicator& communicator, const std::shared_ptr<Work>& work);

// Making groups of the ranks of a communicator: groups.cc.
void bind_groups(pybind11::module_& m);

// Making a communicator of the ranks that survive: shrink.cc.
void bind_shrink(pybind11::module_& m);

// connect() and local_group(): setup/connect.cc.
void bind_connect(pybind11::module_& m);

}  // namespace collectives
