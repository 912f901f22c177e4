#include "bindings/calls/messages.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "bindings/calls/arguments.h"
#include "bindings/calls/communicator.h"
#include "bindings/calls/unlocked.h"
#include "bindings/calls/work.h"

namespace collectives {
namespace {

namespace py = pybind11;

enum Position : std::uint8_t { kSending, kX, kPeer, kTag, kAsync, kTimeout, kName, kStream, kArguments };

// Whether the object is an int from 0 to `most`.
bool index(PyObject* object, long most, int* result) {
  const long value = PyLong_CheckExact(object) ? PyLong_AsLong(object) : -1;
  PyErr_Clear();  // of one that is larger than a long
  *result = static_cast<int>(value);
  return value >= 0 && value <= most;
}

// Fills `call`. False where the general path has to make the call. held: gets the references to the arrays.
bool parse(PyObject* const* args, const Communicator& communicator, Call* call, py::object* held) {
  const bool sending = args[kSending] == Py_True;
  const bool several = PyList_CheckExact(args[kX]) || PyTuple_CheckExact(args[kX]);
  *held = py::reinterpret_steal<py::object>(several ? PySequence_Tuple(args[kX]) : PyTuple_Pack(1, args[kX]));
  if (!*held) {
    PyErr_Clear();
    return false;
  }
  // The arrays come first: reading them may run Python code, which may come here again and fill the same `call`.
  if (!plain_list(held->ptr(), !sending, call)) {
    return false;
  }
  call->collective = Collective::kMessage;
  call->message.sending = sending;
  call->timeout_s = -1;
  call->name.clear();
  return args[kStream] == Py_None && (args[kAsync] == Py_False || args[kAsync] == Py_True) &&
         index(args[kPeer], communicator.size() - 1, &call->message.peer) &&
         call->message.peer != communicator.rank() && index(args[kTag], kMaxTag, &call->message.tag) &&
         (args[kTimeout] == Py_None || (number(args[kTimeout], &call->timeout_s) && call->timeout_s > 0)) &&
         (args[kName] == Py_None || text(args[kName], &call->name));
}

}  // namespace

PyObject* run_message(PyObject* self, Communicator& communicator, PyObject* const* args, Py_ssize_t count) {
  static PyObject* method = PyUnicode_InternFromString("_general_message");
  if (count != kArguments) {
    PyErr_Format(PyExc_TypeError, "_run_message() takes %d arguments, %zd were given", static_cast<int>(kArguments),
                 count);
    return nullptr;
  }
  release_dropped();
  thread_local Call call;
  py::object held;
  if (!parse(args, communicator, &call, &held)) {
    PyObject* arguments[kArguments + 1] = {self};
    std::copy_n(args, count, arguments + 1);
    return PyObject_VectorcallMethod(method, arguments, std::size(arguments), nullptr);
  }
  PyObject* const result = call.message.sending ? Py_None : args[kX];
  if (args[kAsync] == Py_True) {
    return start_call(communicator, self, call, held.ptr(), nullptr, result);
  }
  std::shared_ptr<Work> work;
  {
    const Unlocked unlocked;
    work = communicator.post_message(call, false);
  }
  if (!wait_interruptibly(communicator, work)) {
    return nullptr;
  }
  return Py_NewRef(result);
}

}  // namespace collectives
