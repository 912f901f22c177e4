#include "bindings/calls/plain_array.h"

#include <algorithm>

#include "bindings/arrays/torch_tensors.h"

namespace collectives {

bool as_plain(PyObject* object, PlainArray* result) {
  if (!PyArray_CheckExact(object)) {
    return read_tensor(object, result);
  }
  auto* const array = reinterpret_cast<PyArrayObject*>(object);
  const int dtype = dtype_of(array);
  if (dtype < 0 || !is_plain(array)) {
    return false;
  }
  *result = {span_of(array),      static_cast<DType>(dtype),       PyArray_NDIM(array),
             PyArray_DIMS(array), PyArray_ISWRITEABLE(array) != 0, true};
  return true;
}

bool same_shape(const PlainArray& a, const PlainArray& b) {
  return a.dtype == b.dtype && a.dimensions == b.dimensions && std::equal(a.shape, a.shape + a.dimensions, b.shape);
}

}  // namespace collectives
