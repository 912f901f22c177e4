#include "bindings/parts.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/communicator.h"
#include "bindings/plain_array.h"
#include "bindings/torch_tensors.h"
#include "bindings/work.h"
#include "core/reducer.h"

namespace collectives {
namespace {

namespace py = pybind11;

// As DESCRIPTION in _layout.py: element type, number of dimensions, dimensions.
constexpr int kMostDimensions = 8;
constexpr int kDescription = 2 + kMostDimensions;

// The arguments, by position: from kAlgorithm on in the order of Options in _parts.py.
enum Position : std::uint8_t {
  kCollective,
  kX,
  kOut,
  kCounts,
  kStream,
  kAlgorithm,
  kAsync,
  kTimeout,
  kName,
  kOp,
  kDeterministic,
  kFactor,
  kArguments,
};
constexpr Py_ssize_t kRequired = kOp;  // the others have defaults

struct Arguments {
  Collective collective;
  PlainArray x;
  Op op;
  std::optional<PlainArray> out;  // otherwise a new array
  Py_ssize_t counts;              // -1: not said
  bool deterministic;
};

bool is_text(PyObject* object, const char* text) {
  return PyUnicode_Check(object) && PyUnicode_CompareWithASCIIString(object, text) == 0;
}

std::optional<Collective> collective_of(PyObject* name) {
  struct Named {
    const char* name;
    Collective kind;
  };
  constexpr Named kNamed[] = {{"all_gather", Collective::kAllGather},
                              {"reduce_scatter", Collective::kReduceScatter},
                              {"all_to_all", Collective::kAllToAll}};
  for (const Named& named : kNamed) {
    if (is_text(name, named.name)) {
      return named.kind;
    }
  }
  return std::nullopt;
}

std::optional<Arguments> parse(PyObject* const* args) {
  for (const Position none : {kFactor, kTimeout, kName, kStream}) {
    if (args[none] != Py_None) {
      return std::nullopt;
    }
  }
  const int op = op_of(args[kOp]);
  const bool counted = args[kCounts] != Py_None;
  const bool given = args[kOut] != Py_None;
  if (op < 0 || (counted && !PyLong_CheckExact(args[kCounts])) || !is_text(args[kAlgorithm], "auto") ||
      args[kAsync] != Py_False || (args[kDeterministic] != Py_False && args[kDeterministic] != Py_True)) {
    return std::nullopt;
  }
  PlainArray x;
  PlainArray out;
  if (!as_plain(args[kX], &x) || (given && !as_plain(args[kOut], &out))) {
    return std::nullopt;
  }
  const auto kind = collective_of(args[kCollective]);
  const Py_ssize_t counts = counted ? PyLong_AsSsize_t(args[kCounts]) : -1;
  if (!kind || (counted && counts < 0)) {
    PyErr_Clear();
    return std::nullopt;
  }
  return Arguments{*kind,
                   x,
                   static_cast<Op>(op),
                   given ? std::optional(out) : std::nullopt,
                   counts,
                   args[kDeterministic] == Py_True};
}

// The length of axis 0 of the result; -1 where the call is not one for here.
npy_intp rows_of_result(const Arguments& a, npy_intp size) {
  if (a.x.dimensions < 1 || a.x.dimensions > kMostDimensions) {
    return -1;
  }
  const npy_intp rows = a.x.shape[0];
  switch (a.collective) {
    case Collective::kAllGather: {
      npy_intp all = 0;  // of arrays without elements it may be anything
      const bool fits = !__builtin_mul_overflow(rows, size, &all);
      return fits && (a.counts < 0 || a.counts == rows) ? all : -1;
    }
    case Collective::kReduceScatter: {
      const bool even = rows % size == 0 && (a.counts < 0 || a.counts == rows / size);
      return even && has_kernel(a.op, a.x.dtype) && a.op != Op::kPremulSum ? rows / size : -1;
    }
    default:
      return a.counts < 0 && rows % size == 0 ? rows : -1;
  }
}

// Whether `out` can take a result of so many rows. It may share memory with `x` where that is the own part of it.
bool fits(const Arguments& a, npy_intp rows, int rank) {
  if (a.out->dtype != a.x.dtype || a.out->dimensions != a.x.dimensions || a.out->shape[0] != rows ||
      !std::equal(a.x.shape + 1, a.x.shape + a.x.dimensions, a.out->shape + 1) || !a.out->writable) {
    return false;
  }
  const Span from = a.x.span;
  const Span to = a.out->span;
  const bool apart = from.data + from.bytes <= to.data || to.data + to.bytes <= from.data;
  return apart || (a.collective == Collective::kAllGather && from.data == to.data + rank * from.bytes);
}

// As empty() in _arrays/adapted.py: its memory begins a cache line, as other libraries want it.
PyObject* new_array(PyArrayObject* like, npy_intp rows) {
  constexpr std::uintptr_t kAlignment = 64;
  npy_intp dimensions[kMostDimensions];
  std::copy_n(PyArray_DIMS(like), PyArray_NDIM(like), dimensions);
  dimensions[0] = rows;
  const npy_intp row_bytes = PyArray_NBYTES(like) / std::max<npy_intp>(PyArray_DIM(like, 0), 1);
  npy_intp bytes = rows * row_bytes + static_cast<npy_intp>(kAlignment);
  auto store = py::reinterpret_steal<py::object>(PyArray_SimpleNew(1, &bytes, NPY_UINT8));
  if (!store) {
    return nullptr;
  }
  auto* const begin = static_cast<char*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(store.ptr())));
  char* const data = begin + (-reinterpret_cast<std::uintptr_t>(begin) % kAlignment);
  PyArray_Descr* dtype = PyArray_DESCR(like);
  Py_INCREF(dtype);  // which the array takes
  auto array = py::reinterpret_steal<py::object>(PyArray_NewFromDescr(
      &PyArray_Type, dtype, PyArray_NDIM(like), dimensions, nullptr, data, NPY_ARRAY_CARRAY, nullptr));
  if (!array || PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array.ptr()), store.release().ptr()) != 0) {
    return nullptr;
  }
  return array.release().ptr();
}

Span bytes_of(std::vector<std::int64_t>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), static_cast<std::int64_t>(values.size() * sizeof values[0])};
}

// What _layout.exchange() does of _layout.describe(), in the same way, for one array: `tables` has a row for each rank
// afterwards. They are the caller's own: while it waits, a signal handler may come here again.
bool exchange(Communicator& communicator, const PlainArray& x, std::vector<std::int64_t>& tables) {
  std::vector<std::int64_t> own(kDescription, 0);
  own[0] = static_cast<std::int64_t>(x.dtype);
  own[1] = x.dimensions;
  std::copy_n(x.shape, x.dimensions, own.begin() + 2);
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

// tables: what the ranks have told each other already, or nullptr.
PyObject* go_general_way(PyObject* self, PyObject* const* args, PyObject* tables) {
  static PyObject* method = PyUnicode_InternFromString("_general_parts");
  PyObject* arguments[kArguments + 2] = {self};
  std::copy_n(args, kArguments, arguments + 1);
  arguments[kArguments + 1] = tables;
  return PyObject_VectorcallMethod(method, arguments, kArguments + (tables == nullptr ? 1 : 2), nullptr);
}

py::object as_array(const std::vector<std::int64_t>& tables, npy_intp size) {
  npy_intp dimensions[] = {size, 1, kDescription};
  auto array = py::reinterpret_steal<py::object>(PyArray_SimpleNew(3, dimensions, NPY_INT64));
  if (!array) {
    throw py::error_already_set();
  }
  std::memcpy(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr())), tables.data(),
              tables.size() * sizeof tables[0]);
  return array;
}

}  // namespace

PyObject* run_parts(PyObject* self, Communicator& communicator, PyObject* const* given, Py_ssize_t count) {
  static PyObject* sum = PyUnicode_InternFromString("sum");
  if (count < kRequired || count > kArguments) {
    PyErr_Format(PyExc_TypeError, "_run_parts() takes %zd to %d arguments, %zd were given", kRequired,
                 static_cast<int>(kArguments), count);
    return nullptr;
  }
  release_dropped();
  PyObject* args[kArguments] = {};
  args[kOp] = sum;
  args[kDeterministic] = Py_False;
  args[kFactor] = Py_None;
  std::copy_n(given, count, args);
  const auto a = parse(args);
  const npy_intp rows = a ? rows_of_result(*a, communicator.size()) : -1;
  if (rows < 0 || (a->out && !fits(*a, rows, communicator.rank()))) {
    return go_general_way(self, args, nullptr);
  }
  py::object result = py::reinterpret_borrow<py::object>(args[kOut]);
  PlainArray to;
  if (a->out) {
    to = *a->out;
  } else {
    result = py::reinterpret_steal<py::object>(a->x.numpy ? new_array(reinterpret_cast<PyArrayObject*>(args[kX]), rows)
                                                          : new_tensor(a->x, rows));
    if (!result) {
      return nullptr;
    }
    if (!as_plain(result.ptr(), &to)) {
      return go_general_way(self, args, nullptr);
    }
  }
  if (a->collective == Collective::kAllGather && a->counts < 0) {
    std::vector<std::int64_t> tables;
    if (!exchange(communicator, a->x, tables)) {
      return nullptr;
    }
    if (!all_alike(tables)) {
      return go_general_way(self, args, as_array(tables, communicator.size()).ptr());
    }
  }
  thread_local Call call;
  call.collective = a->collective;
  call.op = a->op;
  call.dtype = a->x.dtype;
  call.deterministic = a->deterministic;
  call.input.assign(1, a->x.span);
  call.output.assign(1, to.span);
  return run_to_end(communicator, call) ? result.release().ptr() : nullptr;
}

}  // namespace collectives
