// shrink(): waits with the interpreter unlocked, and lets signal handlers (Ctrl-C) run now and then.

#include <memory>

#include "bindings/calls/communicator.h"
#include "bindings/calls/unlocked.h"

namespace collectives {
namespace {

namespace py = pybind11;

py::object shrink(py::handle object, double patience) {
  constexpr double kSlice = 0.1;
  Communicator& communicator = communicator_of(object);
  Shrinking& shrinking = communicator.shrinking();
  {
    const Unlocked unlocked;
    shrinking.begin(patience);
  }
  for (bool done = false; !done;) {
    {
      const Unlocked unlocked;
      done = shrinking.wait(kSlice);
    }
    if (!done && PyErr_CheckSignals() != 0) {
      shrinking.give_up();
      throw py::error_already_set();
    }
  }
  std::unique_ptr<Communicator> made;
  {
    const Unlocked unlocked;
    made = shrinking.finish();
  }
  return make_handle(std::move(made));
}

}  // namespace

void bind_shrink(py::module_& m) {
  m.def("_shrink", &shrink, py::arg("communicator"), py::arg("patience"),
        "A communicator of the ranks that survive; see Communicator.shrink.");
}

}  // namespace collectives
