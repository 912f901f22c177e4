#include "bindings/arrays/arrays.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

namespace collectives {
namespace {

namespace py = pybind11;

// NumPy's number of each element type. Those of ml_dtypes get theirs when that is imported.
std::array<int, kDTypes> g_numbers;
// The element type of each number of NumPy itself, -1 where there is none. Some have two numbers: NPY_LONG and
// NPY_LONGLONG.
std::array<std::int8_t, NPY_NTYPES_LEGACY> g_of_number;

}  // namespace

void load_dtypes() {
  const py::module_ numpy = py::module_::import("numpy");
  const py::module_ ml_dtypes = py::module_::import("ml_dtypes");
  const py::object dtype = numpy.attr("dtype");
  g_of_number.fill(-1);
  for (int i = 0; i < kDTypes; ++i) {
    const std::string text(facts(static_cast<DType>(i)).name);
    const bool own = !py::hasattr(ml_dtypes, text.c_str());
    const py::object found = own ? dtype(text) : dtype(ml_dtypes.attr(text.c_str()));
    g_numbers[static_cast<std::size_t>(i)] = found.attr("num").cast<int>();
    for (int number = 0; own && number < static_cast<int>(g_of_number.size()); ++number) {
      const auto other = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyArray_DescrFromType(number)));
      PyErr_Clear();
      if (other && other.equal(found)) {
        g_of_number[static_cast<std::size_t>(number)] = static_cast<std::int8_t>(i);
      }
    }
  }
}

int dtype_of(PyArrayObject* array) {
  const int number = PyArray_TYPE(array);
  if (number < static_cast<int>(g_of_number.size())) {
    return g_of_number[static_cast<std::size_t>(number)];
  }
  const auto* const found = std::ranges::find(g_numbers, number);
  return found == g_numbers.end() ? -1 : static_cast<int>(found - g_numbers.begin());
}

PyArray_Descr* new_descriptor(DType dtype) { return PyArray_DescrFromType(g_numbers[static_cast<std::size_t>(dtype)]); }

bool is_plain(PyArrayObject* array) {
  constexpr int kNeeded = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
  return (PyArray_FLAGS(array) & kNeeded) == kNeeded && PyArray_ISNOTSWAPPED(array);
}

}  // namespace collectives
