#include "bindings/calls/vector_calls.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "bindings/arrays/torch_tensors.h"
#include "bindings/calls/arguments.h"
#include "bindings/calls/communicator.h"
#include "bindings/calls/layouts.h"
#include "bindings/calls/options.h"
#include "bindings/calls/plain_array.h"
#include "bindings/calls/work.h"
#include "bindings/setup/kept.h"
#include "reduce/reducer.h"

namespace collectives {
namespace {

namespace py = pybind11;

enum Position : std::uint8_t { kCollective, kX, kOut, kCounts, kOptions };

struct Arguments {
  Collective collective;
  Op op;
  bool deterministic;
  int root;
  bool sends;                     // false for the ranks that are not the root of a scatter; their x is ignored
  bool receives;                  // false for the ranks that are not the root of a gather; their out is ignored
  PlainArray x;                   // without memory where this rank does not send
  std::optional<PlainArray> out;  // nullopt: the result is a new array
  Py_ssize_t counts;              // -1: not given
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
                              {"gather", Collective::kGather},
                              {"scatter", Collective::kScatter},
                              {"reduce_scatter", Collective::kReduceScatter},
                              {"all_to_all", Collective::kAllToAll}};
  for (const Named& named : kNamed) {
    if (is_text(name, named.name)) {
      return named.kind;
    }
  }
  return std::nullopt;
}

// The number of a rank; -1 for any other object.
int rank_of(PyObject* object, int size) {
  int overflow = 0;
  const long value = PyLong_CheckExact(object) ? PyLong_AsLongAndOverflow(object, &overflow) : -1;
  return overflow == 0 && value >= 0 && value < size ? static_cast<int>(value) : -1;
}

std::optional<Arguments> parse(PyObject* const* args, const CallOptions& options, const Communicator& communicator) {
  for (PyObject* const other : {options.factor, options.timeout, options.name, options.stream}) {
    if (other != Py_None) {
      return std::nullopt;
    }
  }
  const auto collective = collective_of(args[kCollective]);
  const int op = op_of(options.op);
  const int root = rank_of(options.root, communicator.size());
  const bool counted = args[kCounts] != Py_None;
  if (!collective || op < 0 || root < 0 || (counted && !PyLong_CheckExact(args[kCounts])) ||
      !is_text(options.algorithm, "auto") || options.async_op != Py_False ||
      (options.deterministic != Py_False && options.deterministic != Py_True)) {
    return std::nullopt;
  }
  const bool here = root == communicator.rank();
  Arguments a{};
  a.collective = *collective;
  a.op = static_cast<Op>(op);
  a.deterministic = options.deterministic == Py_True;
  a.root = root;
  a.sends = here || *collective != Collective::kScatter;
  a.receives = here || *collective != Collective::kGather;
  if (a.sends && !as_plain(args[kX], &a.x)) {
    return std::nullopt;
  }
  if (PlainArray out{}; a.receives && args[kOut] != Py_None) {
    if (!as_plain(args[kOut], &out) || !out.writable) {
      return std::nullopt;
    }
    a.out = out;
  }
  a.counts = counted ? PyLong_AsSsize_t(args[kCounts]) : -1;
  if (counted && a.counts < 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  return a;
}

// Whether the result has rows of all ranks.
bool gathers(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kGather;
}

// The length of axis 0 of the result, on a rank that sends; -1 where the general path has to make the call.
npy_intp rows_of_result(const Arguments& a, npy_intp size) {
  if (a.x.dimensions < 1 || a.x.dimensions > kMostDimensions) {
    return -1;
  }
  const npy_intp rows = a.x.shape[0];
  switch (a.collective) {
    case Collective::kAllGather:
    case Collective::kGather: {
      npy_intp all = 0;
      const bool fits = !__builtin_mul_overflow(rows, size, &all);  // an array without elements may have any length
      return fits && (a.counts < 0 || a.counts == rows) ? all : -1;
    }
    case Collective::kReduceScatter:
    case Collective::kScatter: {
      const bool even = rows % size == 0 && (a.counts < 0 || a.counts == rows / size);
      const bool known =
          a.collective == Collective::kScatter || (has_kernel(a.op, a.x.dtype) && a.op != Op::kPremulSum);
      return even && known ? rows / size : -1;
    }
    default:
      return a.counts < 0 && rows % size == 0 ? rows : -1;
  }
}

// Whether `out` has the shape of a result with so many rows. It may share memory with `x` only where `x` is this rank's
// part of the result of an all_gather.
bool fits(const Arguments& a, npy_intp rows, int rank) {
  if (a.out->dtype != a.x.dtype || a.out->dimensions != a.x.dimensions || a.out->shape[0] != rows ||
      !std::equal(a.x.shape + 1, a.x.shape + a.x.dimensions, a.out->shape + 1)) {
    return false;
  }
  const Span from = a.x.span;
  const Span to = a.out->span;
  const bool apart = from.data + from.bytes <= to.data || to.data + to.bytes <= from.data;
  return apart || (a.collective == Collective::kAllGather && from.data == to.data + rank * from.bytes);
}

// A new array, aligned to 64 bytes for other libraries, as empty() in _arrays/adapted.py. dtype: its reference is
// stolen.
PyObject* new_array(PyArray_Descr* dtype, const PlainArray& like, npy_intp rows) {
  constexpr std::uintptr_t kAlignment = 64;
  npy_intp dimensions[kMostDimensions];
  std::copy_n(like.shape, like.dimensions, dimensions);
  dimensions[0] = rows;
  npy_intp bytes = static_cast<npy_intp>(size_of(like.dtype));
  for (int i = like.dimensions - 1; i >= 0; --i) {  // rows last: without elements there may be any number, times 0
    bytes *= dimensions[i];
  }
  bytes += static_cast<npy_intp>(kAlignment);
  auto store = py::reinterpret_steal<py::object>(PyArray_SimpleNew(1, &bytes, NPY_UINT8));
  if (!store) {
    Py_DECREF(dtype);
    return nullptr;
  }
  auto* const begin = static_cast<char*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(store.ptr())));
  char* const data = begin + (-reinterpret_cast<std::uintptr_t>(begin) % kAlignment);
  auto array = py::reinterpret_steal<py::object>(PyArray_NewFromDescr(&PyArray_Type, dtype, like.dimensions, dimensions,
                                                                      nullptr, data, NPY_ARRAY_CARRAY, nullptr));
  if (!array || PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array.ptr()), store.release().ptr()) != 0) {
    return nullptr;
  }
  return array.release().ptr();
}

// The dtype and shape of an array, as they were before its rank waited.
struct Layout {
  DType dtype;
  int dimensions;
  npy_intp shape[kMostDimensions];

  explicit Layout(const PlainArray& x) : dtype(x.dtype), dimensions(x.dimensions), shape{} {
    std::copy_n(x.shape, x.dimensions, shape);
  }
  bool is(const PlainArray& x) const {
    return x.dtype == dtype && x.dimensions == dimensions && std::equal(shape, shape + dimensions, x.shape);
  }
};

// Reads the arrays again after a wait, in which a signal handler or another thread may have given them other memory or
// another shape. False when they are no plain arrays any more, or x has not the layout that the other ranks know.
bool read_again(Arguments* a, PyObject* const* args, const std::optional<Layout>& before) {
  if (before && (!as_plain(args[kX], &a->x) || !before->is(a->x))) {
    return false;
  }
  return !a->out || (as_plain(args[kOut], &*a->out) && a->out->writable);
}

// The array for a result of so many rows: out, or a new array of the kind of x. False with the Python error set when
// there is no memory for it; false without one when the general path has to make it.
bool find_result(const Arguments& a, PyObject* const* args, npy_intp rows, py::object* result, PlainArray* to) {
  if (a.out || !a.receives) {
    *result = py::reinterpret_borrow<py::object>(a.receives ? args[kOut] : Py_None);
    *to = a.out.value_or(PlainArray{});
    return true;
  }
  if (!a.x.numpy) {
    *result = py::reinterpret_steal<py::object>(new_tensor(a.x, rows));
  } else if (a.sends) {  // the same descriptor as x: NumPy may have several for a dtype, such as long and long long
    PyObject* dtype = reinterpret_cast<PyObject*>(PyArray_DESCR(reinterpret_cast<PyArrayObject*>(args[kX])));
    *result =
        py::reinterpret_steal<py::object>(new_array(reinterpret_cast<PyArray_Descr*>(Py_NewRef(dtype)), a.x, rows));
  } else {
    *result = py::reinterpret_steal<py::object>(new_array(new_descriptor(a.x.dtype), a.x, rows));
  }
  return *result && as_plain(result->ptr(), to);
}

// known: the layouts that the ranks have exchanged already, or nullptr.
PyObject* run_general(PyObject* self, PyObject* const* args, const CallOptions& options, PyObject* known) {
  static constinit KeptName method("_general_vector");
  const py::object record = as_record(options);
  PyObject* arguments[] = {self, args[kCollective], args[kX], args[kOut], args[kCounts], record.ptr(), known};
  return PyObject_VectorcallMethod(method, arguments, std::size(arguments) - (known == nullptr ? 1 : 0), nullptr);
}

}  // namespace

PyObject* run_vector(PyObject* self, Communicator& communicator, PyObject* const* args, Py_ssize_t count) {
  const CallOptions options = options_by_position("_run_vector", args, count, kOptions);
  release_dropped();
  auto a = parse(args, options, communicator);
  if (!a) {
    return run_general(self, args, options, nullptr);
  }
  const bool exchanges = gathers(a->collective) && a->counts < 0;
  const bool waits = exchanges || a->collective == Collective::kScatter;
  // Where the arrays of others decide on the length of the result, it is allocated when that is known: memory for a
  // guess might not be there, though the others have far less.
  const bool made_later = !a->sends || (exchanges && a->receives);
  py::object result;
  PlainArray to{};
  npy_intp rows = 0;
  std::optional<Layout> before;
  if (a->sends) {  // wrong arguments must be found before the other ranks depend on this one
    rows = rows_of_result(*a, communicator.size());
    if (rows < 0 || (a->out && !fits(*a, rows, communicator.rank()))) {
      return run_general(self, args, options, nullptr);
    }
    if (!made_later && !find_result(*a, args, rows, &result, &to)) {
      return PyErr_Occurred() != nullptr ? nullptr : run_general(self, args, options, nullptr);
    }
    if (waits) {
      before.emplace(a->x);
    }
  }
  std::optional<LayoutTable> known;
  if (a->collective == Collective::kScatter) {
    known = broadcast_layout(communicator, a->root, a->sends ? &a->x : nullptr, rows);
    rows = known && !a->sends ? rows_of(*known, &a->x) : rows;
  } else if (exchanges) {
    known = exchange_layouts(communicator, a->x);
    rows = known && !all_equal(*known) ? -1 : rows;
  }
  if (PyErr_Occurred() != nullptr) {
    return nullptr;
  }
  if (known) {
    if (rows < 0 || !read_again(&*a, args, before) || (a->out && !fits(*a, rows, communicator.rank())) ||
        ((made_later || a->out) && !find_result(*a, args, rows, &result, &to))) {
      return PyErr_Occurred() != nullptr ? nullptr : run_general(self, args, options, as_array(*known).ptr());
    }
  }
  thread_local Call call;
  call.collective = a->collective;
  call.op = a->op;
  call.dtype = a->x.dtype;
  call.deterministic = a->deterministic;
  call.root = a->root;
  call.input.assign(1, a->x.span);
  call.output.assign(1, to.span);
  return run_to_end(communicator, call) ? result.release().ptr() : nullptr;
}

}  // namespace collectives
