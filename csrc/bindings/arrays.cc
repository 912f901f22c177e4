#include "bindings/arrays.h"

#include <pybind11/pybind11.h>

namespace collectives {
namespace {

namespace py = pybind11;

int g_bfloat16 = -1;  // ml_dtypes gets its number when it registers

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
    default:
      return -1;
  }
}

}  // namespace

void load_dtypes() {
  const py::object bfloat16 =
      py::module_::import("numpy").attr("dtype")(py::module_::import("ml_dtypes").attr("bfloat16"));
  g_bfloat16 = bfloat16.attr("num").cast<int>();
}

int dtype_of(PyArrayObject* array) {
  const int number = PyArray_TYPE(array);
  return number == g_bfloat16 ? static_cast<int>(DType::kBFloat16) : from_type_number(number);
}

bool is_plain(PyArrayObject* array) {
  constexpr int kNeeded = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
  return (PyArray_FLAGS(array) & kNeeded) == kNeeded && PyArray_ISNOTSWAPPED(array);
}

}  // namespace collectives
