#include "bindings/parts.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/arrays.h"
#include "bindings/communicator.h"
#include "core/reducer.h"

namespace collectives {
namespace {

namespace py = pybind11;

// As DESCRIPTION in _layout.py: element type, number of dimensions, dimensions.
constexpr int kMostDimensions = 8;
constexpr int kDescription = 2 + kMostDimensions;

struct Arguments {
  Collective collective;
  PyArrayObject* x;
  Op op;
  PyArrayObject* out;  // nullptr: a new array
  Py_ssize_t counts;   // -1: not said
  bool deterministic;
};

std::optional<Collective> collective_of(PyObject* name) {
  for (const Collective kind : {Collective::kAllGather, Collective::kReduceScatter, Collective::kAllToAll}) {
    if (PyUnicode_CompareWithASCIIString(name, collectives::name(kind).data()) == 0) {
      return kind;
    }
  }
  return std::nullopt;
}

std::optional<Arguments> parse(PyObject* const* args, Py_ssize_t count) {
  if (count != 6 || !PyUnicode_Check(args[0]) || !is_plain_array(args[1])) {
    return std::nullopt;
  }
  const auto kind = collective_of(args[0]);
  const int op = op_of(args[2]);
  const bool counted = args[4] != Py_None;
  if (!kind || op < 0 || (args[3] != Py_None && !is_plain_array(args[3])) || (counted && !PyLong_CheckExact(args[4])) ||
      (args[5] != Py_False && args[5] != Py_True)) {
    return std::nullopt;
  }
  Arguments a{*kind, reinterpret_cast<PyArrayObject*>(args[1]), static_cast<Op>(op), nullptr, -1, args[5] == Py_True};
  if (args[3] != Py_None) {
    a.out = reinterpret_cast<PyArrayObject*>(args[3]);
  }
  if (counted) {
    a.counts = PyLong_AsSsize_t(args[4]);
    if (a.counts < 0) {
      PyErr_Clear();
      return std::nullopt;
    }
  }
  return a;
}

// The length of axis 0 of the result; -1 where the call is not one for here.
npy_intp rows_of_result(const Arguments& a, npy_intp size) {
  const int dtype = dtype_of(a.x);
  const int dimensions = PyArray_NDIM(a.x);
  if (dtype < 0 || dimensions < 1 || dimensions > kMostDimensions) {
    return -1;
  }
  const npy_intp rows = PyArray_DIM(a.x, 0);
  switch (a.collective) {
    case Collective::kAllGather:
      return a.counts < 0 || a.counts == rows ? rows * size : -1;
    case Collective::kReduceScatter: {
      const bool even = rows % size == 0 && (a.counts < 0 || a.counts == rows / size);
      return even && has_kernel(a.op, static_cast<DType>(dtype)) && a.op != Op::kPremulSum ? rows / size : -1;
    }
    default:
      return a.counts < 0 && rows % size == 0 ? rows : -1;
  }
}

// Whether `out` can take a result of so many rows. It may share memory with `x` where that is the own part of it.
bool fits(const Arguments& a, npy_intp rows, int rank) {
  const int dimensions = PyArray_NDIM(a.x);
  if (PyArray_TYPE(a.out) != PyArray_TYPE(a.x) || PyArray_NDIM(a.out) != dimensions || PyArray_DIM(a.out, 0) != rows ||
      !PyArray_CompareLists(PyArray_DIMS(a.out) + 1, PyArray_DIMS(a.x) + 1, dimensions - 1) ||
      !PyArray_ISWRITEABLE(a.out)) {
    return false;
  }
  const Span from = span_of(a.x);
  const Span to = span_of(a.out);
  const bool apart = from.data + from.bytes <= to.data || to.data + to.bytes <= from.data;
  return apart || (a.collective == Collective::kAllGather && from.data == to.data + rank * from.bytes);
}

py::object new_array(PyArrayObject* like, npy_intp rows) {
  npy_intp dimensions[kMostDimensions];
  std::copy_n(PyArray_DIMS(like), PyArray_NDIM(like), dimensions);
  dimensions[0] = rows;
  PyArray_Descr* dtype = PyArray_DESCR(like);
  Py_INCREF(dtype);  // which the array takes
  return py::reinterpret_steal<py::object>(
      PyArray_NewFromDescr(&PyArray_Type, dtype, PyArray_NDIM(like), dimensions, nullptr, nullptr, 0, nullptr));
}

Span bytes_of(std::vector<std::int64_t>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), static_cast<std::int64_t>(values.size() * sizeof values[0])};
}

// What _layout.exchange() does, in the same way, for one array: `tables` has a row for each rank afterwards.
bool exchange(Communicator& communicator, PyArrayObject* x, std::vector<std::int64_t>& tables) {
  std::vector<std::int64_t> own(kDescription, 0);
  own[0] = dtype_of(x);
  own[1] = PyArray_NDIM(x);
  std::copy_n(PyArray_DIMS(x), PyArray_NDIM(x), own.begin() + 2);
  tables.resize(own.size() * static_cast<std::size_t>(communicator.size()));
  Call call;
  call.collective = Collective::kAllGather;
  call.dtype = DType::kInt64;
  call.input.assign(1, bytes_of(own));
  call.output.assign(1, bytes_of(tables));
  return run_to_end(communicator, call);
}

bool all_alike(const std::vector<std::int64_t>& tables) {
  return std::equal(tables.begin() + kDescription, tables.end(), tables.begin());
}

// The general path, from where all ranks know what each of them has.
PyObject* go_on(PyObject* self, const Arguments& a, int size, const std::vector<std::int64_t>& tables) {
  static PyObject* method = PyUnicode_InternFromString("_all_gather_uneven");
  npy_intp dimensions[] = {size, 1, kDescription};
  const auto array = py::reinterpret_steal<py::object>(PyArray_SimpleNew(3, dimensions, NPY_INT64));
  if (!array) {
    return nullptr;
  }
  std::memcpy(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr())), tables.data(),
              tables.size() * sizeof tables[0]);
  PyObject* out = a.out == nullptr ? Py_None : reinterpret_cast<PyObject*>(a.out);
  PyObject* arguments[] = {self, reinterpret_cast<PyObject*>(a.x), out, array.ptr()};
  return PyObject_VectorcallMethod(method, arguments, std::size(arguments), nullptr);
}

PyObject* not_here() {
  Py_INCREF(Py_NotImplemented);
  return Py_NotImplemented;
}

}  // namespace

PyObject* even_parts(PyObject* self, Communicator& communicator, PyObject* const* args, Py_ssize_t count) {
  const auto a = parse(args, count);
  if (!a) {
    return not_here();
  }
  const npy_intp rows = rows_of_result(*a, communicator.size());
  if (rows < 0 || (a->out != nullptr && !fits(*a, rows, communicator.rank()))) {
    return not_here();
  }
  if (a->collective == Collective::kAllGather && a->counts < 0) {
    thread_local std::vector<std::int64_t> tables;
    if (!exchange(communicator, a->x, tables)) {
      return nullptr;
    }
    if (!all_alike(tables)) {
      return go_on(self, *a, communicator.size(), tables);
    }
  }
  py::object result = a->out == nullptr ? new_array(a->x, rows)
                                        : py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(a->out));
  if (!result) {
    return nullptr;
  }
  thread_local Call call;
  call.collective = a->collective;
  call.op = a->op;
  call.dtype = static_cast<DType>(dtype_of(a->x));
  call.deterministic = a->deterministic;
  call.input.assign(1, span_of(a->x));
  call.output.assign(1, span_of(reinterpret_cast<PyArrayObject*>(result.ptr())));
  return run_to_end(communicator, call) ? result.release().ptr() : nullptr;
}

}  // namespace collectives
