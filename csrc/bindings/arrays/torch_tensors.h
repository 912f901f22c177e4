// PyTorch's tensors, by the table of functions that their type exports to C code (DLPack 1.2; PyTorch 2.10 and later),
// so that PyTorch is not linked. With older versions Python does the same, more slowly.
#pragma once

#include <pybind11/pybind11.h>

#include "bindings/calls/plain_array.h"

namespace collectives {

// as_plain() for PyTorch's tensors in host memory.
bool read_tensor(PyObject* object, PlainArray* result);

// The same for tensors in the memory of a CUDA device. Returns the number of the device, or -1.
int read_device_tensor(PyObject* object, PlainArray* result);

// PyTorch's current stream on the device, a cudaStream_t; false where PyTorch does not export it. A tensor must have
// been read before.
bool current_torch_stream(int device, void** stream);

// Another tensor over the same storage.
pybind11::object alias_of_tensor(PyObject* tensor);

// A new tensor of the dtype and shape of `like`, but with `rows` along axis 0. nullptr with the Python error set where
// there is no memory.
PyObject* new_tensor(const PlainArray& like, std::int64_t rows);

// A new tensor like one that was read, in C order, whose memory may be used in the order of PyTorch's current stream on
// that device. nullptr with PyTorch's error set where there is no memory.
PyObject* new_device_tensor(PyObject* like);

}  // namespace collectives
