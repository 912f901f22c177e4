// The arrays that the fast paths work on, of NumPy or PyTorch.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include "bindings/arrays/arrays.h"

namespace collectives {

// An array of the caller whose memory the engine can use as it is. Valid as long as the array is not changed.
struct PlainArray {
  Span span;
  DType dtype;
  int dimensions;
  const std::int64_t* shape;
  bool writable;
  bool numpy;  // false: PyTorch

  std::span<const std::int64_t> dimensions_of() const { return {shape, static_cast<std::size_t>(dimensions)}; }
};
static_assert(std::is_same_v<npy_intp, std::int64_t>);

// Fills `result` where the object is a plain array: a NumPy array, or a PyTorch tensor in host memory, that is
// C-contiguous, aligned, in native byte order, and of a dtype that collectives have. Otherwise returns false without a
// Python error: the general path copies the array, or raises what is wrong.
bool as_plain(PyObject* object, PlainArray* result);

bool same_shape(const PlainArray& a, const PlainArray& b);

}  // namespace collectives
