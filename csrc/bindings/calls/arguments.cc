#include "bindings/calls/arguments.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <vector>

#include "bindings/calls/plain_array.h"
#include "reduce/reducer.h"
#include "schedule/algorithm.h"

namespace collectives {
namespace {

namespace py = pybind11;

struct Keyword {
  const char* name;
  PyObject* CallArguments::* field;
  PyObject* interned = nullptr;  // by load_names()
};

std::array<Keyword, kCallOptions.size() + 2> g_keywords = [] {
  std::array<Keyword, kCallOptions.size() + 2> keywords{};
  keywords[0] = {"x", &CallArguments::x};
  keywords[1] = {"out", &CallArguments::out};
  std::ranges::transform(kCallOptions, keywords.begin() + 2,
                         [](const CallOption& option) { return Keyword{option.name, option.field}; });
  return keywords;
}();

std::array<PyObject*, kOps> g_ops{};  // their names, interned by load_names()

// The positional arguments of each method, in order.
struct Positional {
  int count;
  PyObject* CallArguments::* fields[3];
};

Positional positional(Collective kind) {
  switch (kind) {
    case Collective::kAllReduce:
    case Collective::kScan:
    case Collective::kExscan:
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

bool accepts(Collective kind, PyObject* CallArguments::* field) {
  switch (kind) {
    case Collective::kAllReduce:
    case Collective::kScan:
    case Collective::kExscan:
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
  for (const Keyword& keyword : g_keywords) {
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

}  // namespace

void load_names() {
  const auto interned = [](const char* text) {
    PyObject* const made = PyUnicode_InternFromString(text);
    if (made == nullptr) {
      throw py::error_already_set();
    }
    return made;
  };
  for (Keyword& keyword : g_keywords) {
    keyword.interned = interned(keyword.name);
  }
  for (int i = 0; i < kOps; ++i) {
    g_ops[i] = interned(std::string(name(static_cast<Op>(i))).c_str());
  }
}

int op_of(PyObject* text) {
  for (int i = 0; i < kOps; ++i) {
    if (g_ops[i] == text) {
      return i;
    }
  }
  for (int i = 0; PyUnicode_Check(text) && i < kOps; ++i) {
    if (PyUnicode_Compare(g_ops[i], text) == 0) {
      return i;
    }
  }
  return -1;
}

bool number(PyObject* object, double* result) {
  if (!PyFloat_CheckExact(object) && !PyLong_CheckExact(object)) {
    return false;
  }
  *result = PyFloat_AsDouble(object);
  const bool fits = PyErr_Occurred() == nullptr;  // an int may be too large
  PyErr_Clear();
  return fits;
}

bool text(PyObject* object, std::string* result) {
  Py_ssize_t bytes = 0;
  const char* utf8 = PyUnicode_CheckExact(object) ? PyUnicode_AsUTF8AndSize(object, &bytes) : nullptr;
  PyErr_Clear();  // of text that UTF-8 cannot encode, such as half of a surrogate pair
  if (utf8 != nullptr) {
    result->assign(utf8, static_cast<std::size_t>(bytes));
  }
  return utf8 != nullptr;
}

bool plain_list(PyObject* tuple, bool written, Call* call) {
  const Py_ssize_t size = PyTuple_GET_SIZE(tuple);
  std::vector<Span> spans;
  spans.reserve(static_cast<std::size_t>(size));
  call->shapes.restart();
  DType dtype{};
  for (Py_ssize_t i = 0; i < size; ++i) {
    PlainArray array;
    if (!as_plain(PyTuple_GET_ITEM(tuple, i), &array) || (written && !array.writable) ||
        (i > 0 && array.dtype != dtype)) {
      return false;
    }
    dtype = array.dtype;
    spans.push_back(array.span);
    call->shapes.add(array.dimensions_of());
  }
  call->shapes.finish();
  if (size == 0 || (written && overlap(spans))) {
    return false;
  }
  call->dtype = dtype;
  call->input.assign(spans.begin(), spans.end());
  call->output.assign(spans.begin(), spans.end());
  return true;
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
    if (keyword == nullptr || !accepts(kind, keyword->field)) {
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

bool CallArguments::read_arrays(Call* call, py::object* held) const {
  if (PyList_CheckExact(x) || PyTuple_CheckExact(x)) {
    *held = py::reinterpret_steal<py::object>(PySequence_Tuple(x));
    if (!*held) {
      PyErr_Clear();
      return false;
    }
    return !given(out) && plain_list(held->ptr(), true, call);
  }
  PlainArray source;
  if (!as_plain(x, &source)) {
    return false;
  }
  PlainArray target = source;
  if (given(out)) {
    if (out == x || !as_plain(out, &target) || !same_shape(source, target)) {
      return false;
    }
    // The general path sees to arrays that overlap.
    const Span a = source.span;
    const Span b = target.span;
    if (a.data < b.data + b.bytes && b.data < a.data + a.bytes) {
      return false;
    }
  }
  if (!target.writable) {
    return false;
  }
  call->dtype = source.dtype;
  call->shapes.assign(source.dimensions_of());
  call->input.assign(1, source.span);
  call->output.assign(1, target.span);
  return true;
}

bool CallArguments::plain(Collective kind, Call* call, py::object* held) const {
  if (given(stream) || (async_op != nullptr && async_op != Py_False && async_op != Py_True) ||
      (deterministic != nullptr && deterministic != Py_False && deterministic != Py_True)) {
    return false;
  }
  // The arrays come first: reading them may run Python code, which may come here again and fill the same `call`.
  if (kind == Collective::kBarrier) {
    call->dtype = DType::kUInt8;
    call->shapes.clear();
    call->input.clear();
    call->output.clear();
  } else if (!read_arrays(call, held)) {
    return false;
  }
  call->collective = kind;
  call->deterministic = deterministic == Py_True;
  call->op = Op::kSum;
  call->root = 0;
  call->factor = 1;
  call->timeout_s = -1;
  call->name.clear();
  if (given(timeout) && !(number(timeout, &call->timeout_s) && call->timeout_s > 0)) {
    return false;
  }
  if (given(name) && !text(name, &call->name)) {
    return false;
  }
  if (op != nullptr) {
    const int found = op_of(op);
    if (found < 0) {
      return false;
    }
    call->op = static_cast<Op>(found);
  }
  if (is_prefix(kind) && call->op == Op::kAvg) {
    return false;
  }
  const bool scaled = call->op == Op::kPremulSum;
  if (given(factor) != scaled || (scaled && !number(factor, &call->factor))) {
    return false;
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
  return kind == Collective::kBarrier || has_kernel(call->op, call->dtype);  // there is no avg of integers, for example
}

}  // namespace collectives
