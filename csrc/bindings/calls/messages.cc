#include "bindings/calls/messages.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "bindings/arrays/arrays.h"
#include "bindings/calls/arguments.h"
#include "bindings/calls/communicator.h"
#include "bindings/calls/options.h"
#include "bindings/calls/unlocked.h"
#include "bindings/calls/work.h"
#include "bindings/setup/kept.h"

namespace collectives {
namespace {

namespace py = pybind11;

enum Position : std::uint8_t { kSending, kX, kPeer, kTag, kOptions };

// Whether the object is an int from 0 to `most`.
bool index(PyObject* object, long most, int* result) {
  const long value = PyLong_CheckExact(object) ? PyLong_AsLong(object) : -1;
  PyErr_Clear();  // of one that is larger than a long
  *result = static_cast<int>(value);
  return value >= 0 && value <= most;
}

// Fills `call`. False where the general path has to make the call. held: gets the references to the arrays.
bool parse(PyObject* const* args, const CallOptions& options, const Communicator& communicator, Call* call,
           py::object* held) {
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
  return options.stream == Py_None && (options.async_op == Py_False || options.async_op == Py_True) &&
         index(args[kPeer], communicator.size() - 1, &call->message.peer) &&
         index(args[kTag], kMaxTag, &call->message.tag) &&
         (options.timeout == Py_None || (number(options.timeout, &call->timeout_s) && call->timeout_s > 0)) &&
         (options.name == Py_None || text(options.name, &call->name));
}

PyObject* run_general(PyObject* self, PyObject* const* args, const CallOptions& options) {
  static constinit KeptName method("_general_message");
  const py::object record = as_record(options);
  PyObject* arguments[] = {self, args[kSending], args[kX], args[kPeer], args[kTag], record.ptr()};
  return PyObject_VectorcallMethod(method, arguments, std::size(arguments), nullptr);
}

}  // namespace

PyObject* run_message(PyObject* self, Communicator& communicator, PyObject* const* args, Py_ssize_t count) {
  const CallOptions options = options_by_position("_run_message", args, count, kOptions);
  release_dropped();
  thread_local Call call;
  py::object held;
  if (!parse(args, options, communicator, &call, &held)) {
    return run_general(self, args, options);
  }
  PyObject* const result = call.message.sending ? Py_None : args[kX];
  if (options.async_op == Py_True) {
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

void bind_messages(py::module_& m) {
  // (source, dtype, elements, arrays), or None where none has come in time.
  m.def(
      "_probe",
      [](py::handle c, std::optional<int> source, int tag, double timeout_s) -> std::optional<py::tuple> {
        Communicator& communicator = communicator_of(c);
        constexpr double kSlice = 0.1;
        const auto start = Clock::now();
        for (;;) {
          const double left = timeout_s - std::chrono::duration<double>(Clock::now() - start).count();
          std::optional<Incoming> found;
          {
            const Unlocked unlocked;
            found = communicator.probe(source.value_or(Message::kAny), tag, std::clamp(left, 0.0, kSlice));
          }
          if (found) {
            const Signature& signature = found->signature;
            const auto dtype = static_cast<DType>(signature.dtype);
            return py::make_tuple(found->source,
                                  py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(new_descriptor(dtype))),
                                  total_count(signature), static_cast<int>(signature.tensors));
          }
          if (left <= kSlice) {
            return std::nullopt;
          }
          if (PyErr_CheckSignals() != 0) {
            throw py::error_already_set();
          }
        }
      },
      py::arg("communicator"), py::arg("source"), py::arg("tag"), py::arg("timeout"),
      "What is known of the first message that no receive takes: source, dtype, elements, arrays. None where none has "
      "come after `timeout` seconds.");
}

}  // namespace collectives
