// _core.Communicator and _core.Work: types made by hand, because their calls have to be fast.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "engine/communicator.h"

namespace collectives {

// Adds the types Communicator and Work, and the functions that make communicators.
void bind_communicator(pybind11::module_& m);

// A capsule that _core.Communicator(...) takes over.
pybind11::object make_handle(std::unique_ptr<Communicator> communicator);

// The communicator inside a _core.Communicator; ArgumentTypeError for any other object.
Communicator& communicator_of(pybind11::handle object);

// The same, to be kept.
std::shared_ptr<Communicator> shared_communicator_of(pybind11::handle object);

// Runs a call on arrays that the caller holds, to its end; false, with Python's exception set, where it failed.
bool run_to_end(Communicator& communicator, const Call& call);

// Waits with the interpreter unlocked, and looks at Ctrl-C now and then: false, with Python's exception set, where that
// was pressed.
bool wait_interruptibly(Communicator& communicator, const std::shared_ptr<Work>& work);

// Making groups out of a communicator: see groups.cc.
void bind_groups(pybind11::module_& m);

// Making one of the ranks that are left of a communicator: see shrink.cc.
void bind_shrink(pybind11::module_& m);

// connect() and local_group(): see connect.cc.
void bind_connect(pybind11::module_& m);

}  // namespace collectives
