// The memory of PyTorch's tensors, by the functions that their type offers to C code (DLPack 1.2; PyTorch 2.10 and
// later). Nothing of PyTorch is linked. Where it offers none, Python does the same more slowly.
#pragma once

#include <pybind11/pybind11.h>

#include "bindings/calls/plain_array.h"

namespace collectives {

// See as_plain().
bool look_at_tensor(PyObject* object, PlainArray* result);

// The same for a tensor in the memory of a CUDA device: the number of the device, or -1.
int look_at_device_tensor(PyObject* object, PlainArray* result);

// The stream in which PyTorch works on the device just now: a cudaStream_t. Once a tensor was looked at. False where it
// does not say.
bool current_torch_stream(int device, void** stream);

// Another tensor over the same storage.
pybind11::object another_tensor(PyObject* tensor);

// A new tensor of the element type and the dimensions of a tensor, but for the length of axis 0. nullptr, with the
// Python error set, when there is no memory.
PyObject* new_tensor(const PlainArray& like, std::int64_t rows);

// A new tensor like one that was looked at, in C order, whose memory may be used in the order of PyTorch's stream on
// that device. nullptr, with PyTorch's error set, when there is no memory.
PyObject* new_device_tensor(PyObject* like);

}  // namespace collectives
