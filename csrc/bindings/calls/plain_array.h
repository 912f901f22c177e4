// The arrays that the fast paths work on, whoever's they are.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include "bindings/arrays/arrays.h"

namespace collectives {

// An array of the caller whose memory can take part as it is. Valid while the caller leaves the array alone.
struct PlainArray {
  Span span;
  DType dtype;
  int dimensions;
  const std::int64_t* shape;
  bool writable;
  bool numpy;  // otherwise it is PyTorch's

  std::span<const std::int64_t> dimensions_of() const { return {shape, static_cast<std::size_t>(dimensions)}; }
};
static_assert(std::is_same_v<npy_intp, std::int64_t>);

// Fills `result` where the object is a NumPy array, or a PyTorch tensor in the host's memory, in one C-contiguous,
// aligned piece in native byte order, of an element type that collectives have. Otherwise it returns false, without a
// Python error: then the general path says what is wrong, or makes a copy.
bool as_plain(PyObject* object, PlainArray* result);

bool same_shape(const PlainArray& a, const PlainArray& b);

}  // namespace collectives
