#include "bindings/arguments.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <vector>

#include "bindings/arrays.h"
#include "core/algorithm.h"
#include "core/reducer.h"

namespace collectives {
namespace {

struct Keyword {
  const char* name;
  PyObject* CallArguments::* field;
  PyObject* interned = nullptr;
};

std::array<Keyword, 11> g_keywords = {{{"x", &CallArguments::x},
                                       {"op", &CallArguments::op},
                                       {"root", &CallArguments::root},
                                       {"out", &CallArguments::out},
                                       {"algorithm", &CallArguments::algorithm},
                                       {"deterministic", &CallArguments::deterministic},
                                       {"async_op", &CallArguments::async_op},
                                       {"timeout", &CallArguments::timeout},
                                       {"name", &CallArguments::name},
                                       {"factor", &CallArguments::factor},
                                       {"stream", &CallArguments::stream}}};

// The positional arguments of each method, in order.
struct Positional {
  int count;
  PyObject* CallArguments::* fields[3];
};

Positional positional(Collective kind) {
  switch (kind) {
    case Collective::kAllReduce:
      return {2, {&CallArguments::x, &CallArguments::op, nullptr}};
    case Collective::kReduce:
      return {3, {&CallArguments::x, &CallArguments::op, &CallArguments::root}};
    case Collective::kBroadcast:
      return {2, {&CallArguments::x, &CallArguments::root, nullptr}};
    default:
      break;
  }
  return {0, {nullptr, nullptr, nullptr}};
}

bool takes(Collective kind, PyObject* CallArguments::* field) {
  switch (kind) {
    case Collective::kAllReduce:
      return field != &CallArguments::root;
    case Collective::kReduce:
      return true;
    case Collective::kBroadcast:
      return field != &CallArguments::op && field != &CallArguments::deterministic && field != &CallArguments::factor;
    case Collective::kBarrier:
      return field == &CallArguments::algorithm || field == &CallArguments::async_op ||
             field == &CallArguments::timeout || field == &CallArguments::name;
    default:
      break;
  }
  return false;
}

const Keyword* find_keyword(PyObject* name) {
  for (Keyword& keyword : g_keywords) {
    if (keyword.interned == nullptr) {
      keyword.interned = PyUnicode_InternFromString(keyword.name);
    }
    if (keyword.interned == name) {
      return &keyword;
    }
  }
  for (const Keyword& keyword : g_keywords) {
    if (PyUnicode_CompareWithASCIIString(name, keyword.name) == 0) {
      return &keyword;
    }
  }
  return nullptr;
}

bool given(PyObject* object) { return object != nullptr && object != Py_None; }

// Whether two of the spans share bytes.
bool overlap(const std::vector<Span>& spans) {
  thread_local std::vector<Span> sorted;
  sorted.clear();
  std::ranges::copy_if(spans, std::back_inserter(sorted), [](const Span& span) { return span.bytes > 0; });
  std::ranges::sort(sorted, {}, &Span::data);
  return std::ranges::adjacent_find(sorted, [](const Span& a, const Span& b) { return a.data + a.bytes > b.data; }) !=
         sorted.end();
}

// A list of plain arrays of one type that may be written, reduced in place.
bool plain_list(PyObject* list, Call* call) {
  const Py_ssize_t size = PyList_GET_SIZE(list);
  call->input.clear();
  int type = -1;
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* item = PyList_GET_ITEM(list, i);
    if (!is_plain_array(item)) {
      return false;
    }
    auto* array = reinterpret_cast<PyArrayObject*>(item);
    const int own = dtype_of(array);
    if (own < 0 || (i > 0 && own != type) || !PyArray_ISWRITEABLE(array)) {
      return false;
    }
    type = own;
    call->input.push_back(span_of(array));
  }
  if (size == 0 || overlap(call->input)) {
    return false;
  }
  call->dtype = static_cast<DType>(type);
  call->output.assign(call->input.begin(), call->input.end());
  return true;
}

bool same_shape(PyArrayObject* a, PyArrayObject* b) {
  return PyArray_TYPE(a) == PyArray_TYPE(b) && PyArray_NDIM(a) == PyArray_NDIM(b) &&
         PyArray_CompareLists(PyArray_DIMS(a), PyArray_DIMS(b), PyArray_NDIM(a));
}

}  // namespace

int op_of(PyObject* text) {
  static std::array<PyObject*, kOps> interned = [] {
    std::array<PyObject*, kOps> names{};
    for (int i = 0; i < kOps; ++i) {
      names[i] = PyUnicode_InternFromString(std::string(name(static_cast<Op>(i))).c_str());
    }
    return names;
  }();
  for (int i = 0; i < kOps; ++i) {
    if (interned[i] == text) {
      return i;
    }
  }
  for (int i = 0; PyUnicode_Check(text) && i < kOps; ++i) {
    if (PyUnicode_Compare(interned[i], text) == 0) {
      return i;
    }
  }
  return -1;
}

bool is_plain_array(PyObject* object) {
  return PyArray_CheckExact(object) && is_plain(reinterpret_cast<PyArrayObject*>(object));
}

bool parse_arguments(Collective kind, const char* kind_name, PyObject* const* args, Py_ssize_t count, PyObject* names,
                     CallArguments* result) {
  const Positional order = positional(kind);
  if (count > order.count) {
    PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional arguments, %zd were given", kind_name, order.count,
                 count);
    return false;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    result->*order.fields[i] = args[i];
  }
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; i < named; ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    const Keyword* keyword = find_keyword(name);
    if (keyword == nullptr || !takes(kind, keyword->field)) {
      PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", kind_name, name);
      return false;
    }
    if (result->*keyword->field != nullptr) {
      PyErr_Format(PyExc_TypeError, "%s() got the argument '%U' twice", kind_name, name);
      return false;
    }
    result->*keyword->field = args[count + i];
  }
  if (result->x == nullptr && kind != Collective::kBarrier) {
    PyErr_Format(PyExc_TypeError, "%s() needs an array, or a list of arrays", kind_name);
    return false;
  }
  return true;
}

bool CallArguments::plain(Collective kind, Call* call) const {
  if (given(algorithm) || given(timeout) || given(name) || given(factor) || given(stream) ||
      (async_op != nullptr && async_op != Py_False) ||
      (deterministic != nullptr && deterministic != Py_False && deterministic != Py_True)) {
    return false;
  }
  call->collective = kind;
  call->deterministic = deterministic == Py_True;
  call->op = Op::kSum;
  call->root = 0;
  if (op != nullptr) {
    const int found = op_of(op);
    if (found < 0) {
      return false;
    }
    call->op = static_cast<Op>(found);
  }
  if (root != nullptr) {
    if (!PyLong_CheckExact(root)) {
      return false;
    }
    const long value = PyLong_AsLong(root);
    if (value < 0 || value > UINT16_MAX) {
      PyErr_Clear();
      return false;
    }
    call->root = static_cast<int>(value);
  }
  if (kind == Collective::kBarrier) {
    call->dtype = DType::kUInt8;
    call->input.clear();
    call->output.clear();
    return true;
  }
  if (PyList_CheckExact(x)) {
    return !given(out) && plain_list(x, call) && has_kernel(call->op, call->dtype) && call->op != Op::kPremulSum;
  }
  if (!is_plain_array(x)) {
    return false;
  }
  auto* array = reinterpret_cast<PyArrayObject*>(x);
  auto* target = array;
  if (given(out)) {
    if (!is_plain_array(out) || out == x || !same_shape(array, reinterpret_cast<PyArrayObject*>(out))) {
      return false;
    }
    target = reinterpret_cast<PyArrayObject*>(out);
    // Arrays that share memory only in part need care.
    const Span a = span_of(array);
    const Span b = span_of(target);
    if (a.data < b.data + b.bytes && b.data < a.data + a.bytes) {
      return false;
    }
  }
  const int type = dtype_of(array);
  if (type < 0 || !PyArray_ISWRITEABLE(target)) {
    return false;
  }
  call->dtype = static_cast<DType>(type);
  // avg of integers, say, has no meaning, and premul_sum needs factors; the general path says so.
  if (!has_kernel(call->op, call->dtype) || call->op == Op::kPremulSum) {
    return false;
  }
  call->input.assign(1, span_of(array));
  call->output.assign(1, span_of(target));
  return true;
}

}  // namespace collectives
