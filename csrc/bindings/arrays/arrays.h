// NumPy arrays as spans.
#pragma once

#include "bindings/arrays/numpy_api.h"
#include "core/buffer.h"
#include "core/types.h"

namespace collectives {

// Fills the table of element types; ml_dtypes must be importable.
void load_dtypes();

// The element type of an array, or -1 when the library has none for it.
int dtype_of(PyArrayObject* array);

// A new reference to NumPy's description of an element type, in native byte order.
PyArray_Descr* new_descriptor(DType dtype);

// Whether the engine can use the memory of the array as it is: C-contiguous, aligned, in native byte order.
bool is_plain(PyArrayObject* array);

inline Span span_of(PyArrayObject* array) {
  return {static_cast<std::byte*>(PyArray_DATA(array)), static_cast<std::int64_t>(PyArray_NBYTES(array))};
}

}  // namespace collectives
