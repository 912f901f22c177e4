// The memory of PyTorch's tensors, by the functions that their type offers to C code (DLPack 1.2; PyTorch 2.10 and
// later). Nothing of PyTorch is linked. Where it offers none, Python does the same more slowly.
#pragma once

#include <pybind11/pybind11.h>

#include "bindings/plain_array.h"

namespace collectives {

// See as_plain().
bool look_at_tensor(PyObject* object, PlainArray* result);

// Another tensor over the same storage.
pybind11::object another_tensor(PyObject* tensor);

// A new tensor of the element type and the dimensions of a tensor, but for the length of axis 0. nullptr, with the
// Python error set, when there is no memory.
PyObject* new_tensor(const PlainArray& like, std::int64_t rows);

}  // namespace collectives
