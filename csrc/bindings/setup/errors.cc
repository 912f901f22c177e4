#include "bindings/setup/errors.h"

#include <concepts>
#include <exception>
#include <system_error>

#include "core/error.h"

namespace collectives {
namespace {

namespace py = pybind11;

// An OSError with its errno, as Python raises it.
void set_os_error(const std::system_error& error) {
  if (PyObject* arguments = Py_BuildValue("(is)", error.code().value(), error.what())) {
    PyErr_SetObject(PyExc_OSError, arguments);
    Py_DECREF(arguments);
  }
}

const char* class_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kMismatch:
      return "MismatchError";
    case ErrorKind::kPeer:
      return "PeerError";
    case ErrorKind::kDeadline:
      return "DeadlineError";
    case ErrorKind::kClosed:
      return "ClosedError";
    case ErrorKind::kForked:
      return "ForkedError";
    case ErrorKind::kBackend:
      return "BackendError";
    case ErrorKind::kNone:
    case ErrorKind::kGeneric:
      break;
  }
  return "CollectivesError";
}

// Decodes leniently: a text may hold bytes that a peer sent, or a name that was truncated in the middle of a character.
py::object text(const std::string& bytes) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

py::object known(const py::object& value, bool is_known) { return is_known ? value : py::none(); }
py::object known(std::integral auto value, bool is_known) { return known(py::int_(value), is_known); }
py::object known(double value, bool is_known) { return known(py::float_(value), is_known); }

void set_collectives_error(const CollectivesError& error) {
  try {
    const ErrorContext& context = error.context();
    const py::object type = py::module_::import("collectives.errors").attr(class_name(error.kind()));
    const py::object exception =
        type(text(error.what()), py::arg("rank") = known(context.rank, context.rank >= 0),
             py::arg("peer") = known(context.peer, context.peer >= 0),
             py::arg("collective") = known(text(context.collective), !context.collective.empty()),
             py::arg("sequence") = known(context.sequence, context.sequence >= 0),
             py::arg("name") = known(text(context.name), !context.name.empty()),
             py::arg("age") = known(context.age_s, context.age_s >= 0),
             py::arg("host") = known(text(context.host), !context.host.empty()),
             py::arg("pid") = known(context.pid, context.pid > 0),
             py::arg("bytes_done") = known(context.bytes_done, context.bytes_done >= 0));
    PyErr_SetObject(type.ptr(), exception.ptr());
  } catch (py::error_already_set& python_error) {
    python_error.restore();
  }
}

}  // namespace

void set_python_error() {
  try {
    throw;
  } catch (const CollectivesError& error) {
    set_collectives_error(error);
  } catch (const ArgumentTypeError& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const ArgumentError& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::system_error& error) {
    set_os_error(error);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

std::string interruption() {
  if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0) {
    return "Ctrl-C";
  }
  return "by " + std::string(reinterpret_cast<PyTypeObject*>(PyErr_Occurred())->tp_name) + " of a signal handler";
}

void register_errors() {
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      std::rethrow_exception(pointer);
    } catch (const CollectivesError& error) {
      set_collectives_error(error);
    } catch (const ArgumentTypeError& error) {
      PyErr_SetString(PyExc_TypeError, error.what());
    } catch (const ArgumentError& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const std::system_error& error) {
      set_os_error(error);
    }
  });
}

}  // namespace collectives
