// What kernels share: owned tensors and statuses, attributes, and the translation of errors to TensorFlow's.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "bindings/tensorflow/c_api.h"
#include "core/buffer.h"
#include "core/types.h"

namespace collectives::tensorflow {

struct DeleteStatus {
  void operator()(TfStatus* status) const { api().TF_DeleteStatus(status); }
};
struct DeleteTensor {
  void operator()(TfTensor* tensor) const { api().TF_DeleteTensor(tensor); }
};
using Status = std::unique_ptr<TfStatus, DeleteStatus>;
using Tensor = std::unique_ptr<TfTensor, DeleteTensor>;

inline Status new_status() { return Status(api().TF_NewStatus()); }

// Throws std::runtime_error with the text of a status that is an error.
void check(const TfStatus* status);

// A tensor in error texts: by its name where it has one, else by its number.
std::string tensor_name(const std::vector<std::string>& names, int tensor);

// Element type of a tensor. Throws ArgumentTypeError where the library has none for it; `what` names the tensor.
DType dtype_of(const TfTensor* tensor, const std::string& what);
std::vector<std::int64_t> shape_of(const TfTensor* tensor);
Span span_of(const TfTensor* tensor);

Tensor input(TfContext* context, int index);
void set_output(TfContext* context, int index, const TfTensor* tensor);
// A tensor of the given shape for an output. It gets the memory of one of the inputs, where nothing else holds a
// reference to that input (not even a Tensor of this kernel), else new memory.
Tensor forward_or_allocate(TfContext* context, const std::vector<int>& inputs, int output,
                           const std::vector<std::int64_t>& shape);

std::int64_t integer_attribute(TfConstruction* construction, const char* name);
double float_attribute(TfConstruction* construction, const char* name);
std::string string_attribute(TfConstruction* construction, const char* name);
std::vector<std::string> strings_attribute(TfConstruction* construction, const char* name);

// Whether the error is that ranks disagree about a call.
bool is_mismatch(const std::exception& error);

// The TensorFlow status of an error. renewable: of a group that is renewed after a mismatch (renewal.h).
Status status_of(const std::exception& error, bool renewable = false);

// The functions of a kernel for TensorFlow, made from a class with a constructor from TfConstruction* and a method
// `void compute(TfContext*)`. They catch all exceptions, which TensorFlow's C code could not.
template <class Kernel>
void* create_kernel(TfConstruction* construction) {
  try {
    return new Kernel(construction);
  } catch (const std::exception& error) {
    api().TF_OpKernelConstruction_Failure(construction, status_of(error).get());
    return nullptr;
  }
}

template <class Kernel>
void destroy_kernel(void* kernel) {
  delete static_cast<Kernel*>(kernel);
}

template <class Kernel>
void run_kernel(void* kernel, TfContext* context) {
  try {
    static_cast<Kernel*>(kernel)->compute(context);
  } catch (const std::exception& error) {
    api().TF_OpKernelContext_Failure(context, status_of(error).get());
  }
}

// Each registers the ops of one file. Throws where TensorFlow refuses.
void register_reduce_replicas();
void register_start();
void register_wait();

struct OpDefinition {
  const char* name;
  std::vector<const char*> attributes;
  std::vector<const char*> inputs;
  std::vector<const char*> outputs;
  bool stateful = false;
  bool communicates = false;  // between processes
  void (*shapes)(TfShapeContext*, TfStatus*) = nullptr;
};
void register_op(const OpDefinition& definition);
void register_kernel(const char* op, TfKernelBuilder* builder);

// Shape inference: the shape of an output is that of an input.
void same_shape(TfShapeContext* context, int input, int output, TfStatus* status);

}  // namespace collectives::tensorflow
