#include "bindings/arrays/arrays.h"

#include <pybind11/pybind11.h>

#include <array>

namespace collectives {
namespace {

namespace py = pybind11;

// The dtypes of ml_dtypes, which gets their numbers from NumPy when it is imported.
struct Registered {
  const char* name;
  DType dtype;
  int number = -1;
};
std::array<Registered, 3> g_registered = {
    {{"bfloat16", DType::kBFloat16}, {"float8_e4m3fn", DType::kFloat8E4M3FN}, {"float8_e5m2", DType::kFloat8E5M2}}};

constexpr int from_type_number(int number) {
  switch (number) {
    case NPY_BOOL:
      return static_cast<int>(DType::kBool);
    case NPY_HALF:
      return static_cast<int>(DType::kFloat16);
    case NPY_FLOAT:
      return static_cast<int>(DType::kFloat32);
    case NPY_DOUBLE:
      return static_cast<int>(DType::kFloat64);
    case NPY_BYTE:
      return static_cast<int>(DType::kInt8);
    case NPY_UBYTE:
      return static_cast<int>(DType::kUInt8);
    case NPY_SHORT:
      return static_cast<int>(DType::kInt16);
    case NPY_USHORT:
      return static_cast<int>(DType::kUInt16);
    case NPY_INT:
      return static_cast<int>(DType::kInt32);
    case NPY_UINT:
      return static_cast<int>(DType::kUInt32);
    case NPY_LONG:
      return static_cast<int>(sizeof(long) == 8 ? DType::kInt64 : DType::kInt32);
    case NPY_ULONG:
      return static_cast<int>(sizeof(long) == 8 ? DType::kUInt64 : DType::kUInt32);
    case NPY_LONGLONG:
      return static_cast<int>(DType::kInt64);
    case NPY_ULONGLONG:
      return static_cast<int>(DType::kUInt64);
    case NPY_CFLOAT:
      return static_cast<int>(DType::kComplex64);
    case NPY_CDOUBLE:
      return static_cast<int>(DType::kComplex128);
    default:
      return -1;
  }
}

}  // namespace

void load_dtypes() {
  const py::module_ numpy = py::module_::import("numpy");
  const py::module_ ml_dtypes = py::module_::import("ml_dtypes");
  for (Registered& type : g_registered) {
    type.number = numpy.attr("dtype")(ml_dtypes.attr(type.name)).attr("num").cast<int>();
  }
}

int dtype_of(PyArrayObject* array) {
  const int number = PyArray_TYPE(array);
  if (number < NPY_USERDEF) {
    return from_type_number(number);
  }
  for (const Registered& type : g_registered) {
    if (type.number == number) {
      return static_cast<int>(type.dtype);
    }
  }
  return -1;
}

PyArray_Descr* new_descriptor(DType dtype) {
  for (const Registered& type : g_registered) {
    if (type.dtype == dtype) {
      return PyArray_DescrFromType(type.number);
    }
  }
  int number = NPY_BOOL;
  while (from_type_number(number) != static_cast<int>(dtype)) {
    ++number;
  }
  return PyArray_DescrFromType(number);
}

bool is_plain(PyArrayObject* array) {
  constexpr int kNeeded = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
  return (PyArray_FLAGS(array) & kNeeded) == kNeeded && PyArray_ISNOTSWAPPED(array);
}

}  // namespace collectives
