#include "bindings/calls/parts.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "bindings/arrays/torch_tensors.h"
#include "bindings/calls/arguments.h"
#include "bindings/calls/communicator.h"
#include "bindings/calls/layouts.h"
#include "bindings/calls/plain_array.h"
#include "bindings/calls/work.h"
#include "reduce/reducer.h"

namespace collectives {
namespace {

namespace py = pybind11;

// The arguments, by position: from kAlgorithm on in the order of Options in _calls/parts.py.
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
  kRoot,
  kArguments,
};
constexpr Py_ssize_t kRequired = kOp;  // the others have defaults

struct Arguments {
  Collective collective;
  Op op;
  bool deterministic;
  int root;
  bool gives;                     // not so: who gets from scatter, whose x does not count
  bool takes;                     // not so: who gives to gather, whose out does not count
  PlainArray x;                   // without memory where this rank gives nothing
  std::optional<PlainArray> out;  // otherwise a new array
  Py_ssize_t counts;              // -1: not said
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

// The number of a rank; -1 for anything else.
int rank_of(PyObject* object, int size) {
  int overflow = 0;
  const long value = PyLong_CheckExact(object) ? PyLong_AsLongAndOverflow(object, &overflow) : -1;
  return overflow == 0 && value >= 0 && value < size ? static_cast<int>(value) : -1;
}

std::optional<Arguments> parse(PyObject* const* args, const Communicator& communicator) {
  for (const Position none : {kFactor, kTimeout, kName, kStream}) {
    if (args[none] != Py_None) {
      return std::nullopt;
    }
  }
  const auto collective = collective_of(args[kCollective]);
  const int op = op_of(args[kOp]);
  const int root = rank_of(args[kRoot], communicator.size());
  const bool counted = args[kCounts] != Py_None;
  if (!collective || op < 0 || root < 0 || (counted && !PyLong_CheckExact(args[kCounts])) ||
      !is_text(args[kAlgorithm], "auto") || args[kAsync] != Py_False ||
      (args[kDeterministic] != Py_False && args[kDeterministic] != Py_True)) {
    return std::nullopt;
  }
  const bool here = root == communicator.rank();
  Arguments a{};
  a.collective = *collective;
  a.op = static_cast<Op>(op);
  a.deterministic = args[kDeterministic] == Py_True;
  a.root = root;
  a.gives = here || *collective != Collective::kScatter;
  a.takes = here || *collective != Collective::kGather;
  if (a.gives && !as_plain(args[kX], &a.x)) {
    return std::nullopt;
  }
  if (PlainArray out{}; a.takes && args[kOut] != Py_None) {
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

bool joins(Collective collective) { return collective == Collective::kAllGather || collective == Collective::kGather; }

// The length of axis 0 of the result of a rank that gives; -1 where the call is not one for here.
npy_intp rows_of_result(const Arguments& a, npy_intp size) {
  if (a.x.dimensions < 1 || a.x.dimensions > kMostDimensions) {
    return -1;
  }
  const npy_intp rows = a.x.shape[0];
  switch (a.collective) {
    case Collective::kAllGather:
    case Collective::kGather: {
      npy_intp all = 0;  // of arrays without elements it may be anything
      const bool fits = !__builtin_mul_overflow(rows, size, &all);
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

// Whether `out` can take a result of so many rows. It may share memory with `x` where that is the own part of it.
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

// As empty() in _arrays/adapted.py: its memory begins a cache line, as other libraries want it.
// dtype: which the array takes.
PyObject* new_array(PyArray_Descr* dtype, const PlainArray& like, npy_intp rows) {
  constexpr std::uintptr_t kAlignment = 64;
  npy_intp dimensions[kMostDimensions];
  std::copy_n(like.shape, like.dimensions, dimensions);
  dimensions[0] = rows;
  npy_intp bytes = static_cast<npy_intp>(size_of(like.dtype));
  for (int i = like.dimensions - 1; i >= 0; --i) {  // the rows last: there may be any number of those without elements
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

// The element type and the shape of an array, as they were before its rank waited.
struct Seen {
  DType dtype;
  int dimensions;
  npy_intp shape[kMostDimensions];

  explicit Seen(const PlainArray& x) : dtype(x.dtype), dimensions(x.dimensions), shape{} {
    std::copy_n(x.shape, x.dimensions, shape);
  }
  bool is(const PlainArray& x) const {
    return x.dtype == dtype && x.dimensions == dimensions && std::equal(shape, shape + dimensions, x.shape);
  }
};

// While a rank waits, a signal handler or another thread may give its arrays other memory, or another shape. False when
// they are none for here any more, or x is not what the others know of.
bool look_again(Arguments* a, PyObject* const* args, const std::optional<Seen>& seen) {
  if (seen && (!as_plain(args[kX], &a->x) || !seen->is(a->x))) {
    return false;
  }
  return !a->out || (as_plain(args[kOut], &*a->out) && a->out->writable);
}

// Where a result of so many rows goes: out, or a new array of the kind of x. False when there is no memory for it, with
// the Python error set, or when it is none for here.
bool find_result(const Arguments& a, PyObject* const* args, npy_intp rows, py::object* result, PlainArray* to) {
  if (a.out || !a.takes) {
    *result = py::reinterpret_borrow<py::object>(a.takes ? args[kOut] : Py_None);
    *to = a.out.value_or(PlainArray{});
    return true;
  }
  if (!a.x.numpy) {
    *result = py::reinterpret_steal<py::object>(new_tensor(a.x, rows));
  } else if (a.gives) {  // there may be several descriptors of an element type: long long beside long
    PyObject* dtype = reinterpret_cast<PyObject*>(PyArray_DESCR(reinterpret_cast<PyArrayObject*>(args[kX])));
    *result =
        py::reinterpret_steal<py::object>(new_array(reinterpret_cast<PyArray_Descr*>(Py_NewRef(dtype)), a.x, rows));
  } else {
    *result = py::reinterpret_steal<py::object>(new_array(new_descriptor(a.x.dtype), a.x, rows));
  }
  return *result && as_plain(result->ptr(), to);
}

// known: what the ranks have told each other already, or nullptr.
PyObject* go_general_way(PyObject* self, PyObject* const* args, PyObject* known) {
  static PyObject* method = PyUnicode_InternFromString("_general_parts");
  PyObject* arguments[kArguments + 2] = {self};
  std::copy_n(args, kArguments, arguments + 1);
  arguments[kArguments + 1] = known;
  return PyObject_VectorcallMethod(method, arguments, kArguments + (known == nullptr ? 1 : 2), nullptr);
}

}  // namespace

PyObject* run_parts(PyObject* self, Communicator& communicator, PyObject* const* given, Py_ssize_t count) {
  static PyObject* sum = PyUnicode_InternFromString("sum");
  static PyObject* zero = PyLong_FromLong(0);
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
  args[kRoot] = zero;
  std::copy_n(given, count, args);
  auto a = parse(args, communicator);
  if (!a) {
    return go_general_way(self, args, nullptr);
  }
  const bool asks = joins(a->collective) && a->counts < 0;
  const bool tells = asks || a->collective == Collective::kScatter;
  // What others have decides how long the result is: they may have far less, and this rank no memory for a guess.
  const bool made_later = !a->gives || (asks && a->takes);
  py::object result;
  PlainArray to{};
  npy_intp rows = 0;
  std::optional<Seen> seen;
  if (a->gives) {  // what is wrong by itself has to be seen before the others count on this rank
    rows = rows_of_result(*a, communicator.size());
    if (rows < 0 || (a->out && !fits(*a, rows, communicator.rank()))) {
      return go_general_way(self, args, nullptr);
    }
    if (!made_later && !find_result(*a, args, rows, &result, &to)) {
      return PyErr_Occurred() != nullptr ? nullptr : go_general_way(self, args, nullptr);
    }
    if (tells) {
      seen.emplace(a->x);
    }
  }
  std::optional<Table> told;
  if (a->collective == Collective::kScatter) {
    told = tell(communicator, a->root, a->gives ? &a->x : nullptr, rows);
    rows = told && !a->gives ? rows_told(*told, &a->x) : rows;
  } else if (asks) {
    told = exchange(communicator, a->x);
    rows = told && !all_alike(*told) ? -1 : rows;
  }
  if (PyErr_Occurred() != nullptr) {
    return nullptr;
  }
  if (told) {
    if (rows < 0 || !look_again(&*a, args, seen) || (a->out && !fits(*a, rows, communicator.rank())) ||
        ((made_later || a->out) && !find_result(*a, args, rows, &result, &to))) {
      return PyErr_Occurred() != nullptr ? nullptr : go_general_way(self, args, as_array(*told).ptr());
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
