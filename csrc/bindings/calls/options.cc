#include "bindings/calls/options.h"

#include <algorithm>
#include <string>
#include <utility>

#include "bindings/setup/kept.h"
#include "core/error.h"

namespace collectives {
namespace {

namespace py = pybind11;

PyObject* record_type() {
  static constinit Kept type;
  return type.get(
      [] { return py::object(py::module_::import("collectives._calls.options").attr("CallOptions")).release().ptr(); });
}

const CallOptions& defaults() {
  static constinit Kept record;
  static constinit KeptRecord<CallOptions> known;
  return *known.get(
      [] {
        return new CallOptions(options_of(record.get([] {
          return py::reinterpret_borrow<py::object>(record_type())().release().ptr();  // owns what the options borrow
        })));
      },
      [](const CallOptions&) {});
}

void fill(CallOptions* options, PyObject* const* values, Py_ssize_t count) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    options->*kCallOptions[i].field = values[i];
  }
}

bool is_true(PyObject* object) {
  const int truth = PyObject_IsTrue(object);
  if (truth < 0) {
    throw py::error_already_set();
  }
  return truth == 1;
}

double number_or(PyObject* object, double otherwise) {
  return object == Py_None ? otherwise : py::handle(object).cast<double>();
}

}  // namespace

CallOptions options_by_position(const char* method, PyObject* const* args, Py_ssize_t count, Py_ssize_t others) {
  const Py_ssize_t most = others + std::ssize(kCallOptions);
  if (count < others || count > most) {
    throw ArgumentTypeError(std::string(method) + "() takes " + std::to_string(others) + " to " + std::to_string(most) +
                            " arguments, " + std::to_string(count) + " were given");
  }
  CallOptions options = defaults();
  fill(&options, args + others, count - others);
  return options;
}

void check_count(const char* method, Py_ssize_t count, int wanted) {
  if (count != wanted) {
    throw ArgumentTypeError(std::string(method) + "() takes " + std::to_string(wanted) + " arguments, " +
                            std::to_string(count) + " were given");
  }
}

py::object as_record(const CallOptions& options) {
  std::array<PyObject*, kCallOptions.size()> arguments{};
  std::ranges::transform(kCallOptions, arguments.begin(), [&](const CallOption& option) {
    return options.*option.field == nullptr ? defaults().*option.field : options.*option.field;
  });
  PyObject* const record = PyObject_Vectorcall(record_type(), arguments.data(), arguments.size(), nullptr);
  if (record == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(record);
}

CallOptions options_of(py::handle record) {
  if (!PyTuple_Check(record.ptr()) || PyTuple_GET_SIZE(record.ptr()) != std::ssize(kCallOptions)) {
    throw ArgumentTypeError("a CallOptions is needed, not " + std::string(Py_TYPE(record.ptr())->tp_name));
  }
  CallOptions options;
  fill(&options, PySequence_Fast_ITEMS(record.ptr()), std::ssize(kCallOptions));
  return options;
}

void read_options(const CallOptions& options, Call* call) {
  call->op = parse_op(py::handle(options.op).cast<std::string>());
  call->root = py::handle(options.root).cast<int>();
  call->deterministic = is_true(options.deterministic);
  call->factor = number_or(options.factor, 1);
  call->timeout_s = number_or(options.timeout, -1);
  call->name = options.name == Py_None ? std::string() : py::handle(options.name).cast<std::string>();
}

bool is_async(const CallOptions& options) { return is_true(options.async_op); }

}  // namespace collectives
