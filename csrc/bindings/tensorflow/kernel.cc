#include "bindings/tensorflow/kernel.h"

#include <stdexcept>
#include <utility>

#include "core/error.h"

namespace collectives::tensorflow {
namespace {

Code code_of(const std::exception& error) {
  if (const auto* ours = dynamic_cast<const CollectivesError*>(&error); ours != nullptr) {
    switch (ours->kind()) {
      case ErrorKind::kMismatch:
        return Code::kInvalidArgument;
      case ErrorKind::kPeer:
        return Code::kUnavailable;
      case ErrorKind::kDeadline:
        return Code::kDeadlineExceeded;
      case ErrorKind::kClosed:
      case ErrorKind::kForked:
      case ErrorKind::kBackend:
        return Code::kFailedPrecondition;
      case ErrorKind::kNone:
      case ErrorKind::kGeneric:
        return Code::kInternal;
    }
  }
  return dynamic_cast<const std::invalid_argument*>(&error) != nullptr ? Code::kInvalidArgument : Code::kInternal;
}

}  // namespace

void check(const TfStatus* status) {
  if (api().TF_GetCode(status) != 0) {
    throw std::runtime_error(api().TF_Message(status));
  }
}

bool is_mismatch(const std::exception& error) {
  const auto* ours = dynamic_cast<const CollectivesError*>(&error);
  return ours != nullptr && ours->kind() == ErrorKind::kMismatch;
}

Status status_of(const std::exception& error, bool renewable) {
  Status status = new_status();
  // Such groups are for programs of Horovod, which uses this code for a mismatch.
  const Code code = renewable && is_mismatch(error) ? Code::kFailedPrecondition : code_of(error);
  api().TF_SetStatus(status.get(), static_cast<int>(code), error.what());
  return status;
}

std::string tensor_name(const std::vector<std::string>& names, int tensor) {
  return static_cast<std::size_t>(tensor) < names.size() ? "tensor '" + names[tensor] + "'"
                                                         : "tensor " + std::to_string(tensor);
}

DType dtype_of(const TfTensor* tensor, const std::string& what) {
  const int type = api().TF_TensorType(tensor);
  for (int i = 0; i < kDTypes; ++i) {
    if (facts(static_cast<DType>(i)).tensorflow == type) {
      return static_cast<DType>(i);
    }
  }
  throw ArgumentTypeError(what + " has an element type that cannot travel (TF_DataType " + std::to_string(type) +
                          "); numbers and bool can");
}

std::vector<std::int64_t> shape_of(const TfTensor* tensor) {
  std::vector<std::int64_t> shape(api().TF_NumDims(tensor));
  for (std::size_t d = 0; d < shape.size(); ++d) {
    shape[d] = api().TF_Dim(tensor, static_cast<int>(d));
  }
  return shape;
}

Span span_of(const TfTensor* tensor) {
  return {static_cast<std::byte*>(api().TF_TensorData(tensor)),
          static_cast<std::int64_t>(api().TF_TensorByteSize(tensor))};
}

Tensor input(TfContext* context, int index) {
  const Status status = new_status();
  TfTensor* tensor = nullptr;
  api().TF_GetInput(context, index, &tensor, status.get());
  check(status.get());
  return Tensor(tensor);
}

void set_output(TfContext* context, int index, const TfTensor* tensor) {
  const Status status = new_status();
  api().TF_SetOutput(context, index, tensor, status.get());
  check(status.get());
}

Tensor forward_or_allocate(TfContext* context, const std::vector<int>& inputs, int output,
                           const std::vector<std::int64_t>& shape) {
  const Status status = new_status();
  int forwarded = -1;
  Tensor tensor(api().TF_ForwardInputOrAllocateOutput(context, inputs.data(), static_cast<int>(inputs.size()), output,
                                                      shape.data(), static_cast<int>(shape.size()), &forwarded,
                                                      status.get()));
  check(status.get());
  return tensor;
}

std::int64_t integer_attribute(TfConstruction* construction, const char* name) {
  const Status status = new_status();
  std::int64_t value = 0;
  api().TF_OpKernelConstruction_GetAttrInt64(construction, name, &value, status.get());
  check(status.get());
  return value;
}

double float_attribute(TfConstruction* construction, const char* name) {
  const Status status = new_status();
  float value = 0;
  api().TF_OpKernelConstruction_GetAttrFloat(construction, name, &value, status.get());
  check(status.get());
  return value;
}

std::string string_attribute(TfConstruction* construction, const char* name) {
  const Status status = new_status();
  std::int32_t length = 0;
  std::int32_t bytes = 0;
  api().TF_OpKernelConstruction_GetAttrSize(construction, name, &length, &bytes, status.get());
  check(status.get());
  std::string value(bytes, '\0');
  if (bytes > 0) {
    api().TF_OpKernelConstruction_GetAttrString(construction, name, value.data(), value.size(), status.get());
    check(status.get());
  }
  return value;
}

std::vector<std::string> strings_attribute(TfConstruction* construction, const char* name) {
  const Status status = new_status();
  std::int32_t length = 0;
  std::int32_t bytes = 0;
  api().TF_OpKernelConstruction_GetAttrSize(construction, name, &length, &bytes, status.get());
  check(status.get());
  if (length <= 0) {
    return {};
  }
  std::vector<char*> values(length);
  std::vector<std::size_t> lengths(length);
  std::string storage(bytes, '\0');
  api().TF_OpKernelConstruction_GetAttrStringList(construction, name, values.data(), lengths.data(), length,
                                                  storage.data(), storage.size(), status.get());
  check(status.get());
  std::vector<std::string> result;
  for (std::int32_t i = 0; i < length; ++i) {
    result.emplace_back(values[i], lengths[i]);
  }
  return result;
}

void register_op(const OpDefinition& definition) {
  TfOpDefinitionBuilder* const builder = api().TF_NewOpDefinitionBuilder(definition.name);
  for (const char* attribute : definition.attributes) {
    api().TF_OpDefinitionBuilderAddAttr(builder, attribute);
  }
  for (const char* input : definition.inputs) {
    api().TF_OpDefinitionBuilderAddInput(builder, input);
  }
  for (const char* output : definition.outputs) {
    api().TF_OpDefinitionBuilderAddOutput(builder, output);
  }
  if (definition.stateful) {  // TensorFlow ignores the argument: the call itself marks the op as stateful
    api().TF_OpDefinitionBuilderSetIsStateful(builder, true);
  }
  // TensorFlow turns the error "unavailable" of all other ops into "internal".
  if (definition.communicates && api().set_is_distributed_communication != nullptr) {
    api().set_is_distributed_communication(builder);
  }
  api().TF_OpDefinitionBuilderSetShapeInferenceFunction(
      builder, definition.shapes != nullptr ? definition.shapes : [](TfShapeContext* context, TfStatus* status) {
        api().TF_ShapeInferenceContextSetUnknownShape(context, status);
      });
  const Status status = new_status();
  api().TF_RegisterOpDefinition(builder, status.get());  // takes ownership of the builder
  check(status.get());
}

void register_kernel(const char* op, TfKernelBuilder* builder) {
  const Status status = new_status();
  api().TF_RegisterKernelBuilder(op, builder, status.get());  // takes ownership of the builder
  check(status.get());
}

void same_shape(TfShapeContext* context, int input, int output, TfStatus* status) {
  TfShape* const shape = api().TF_NewShapeHandle();
  api().TF_ShapeInferenceContextGetInput(context, input, shape, status);
  if (api().TF_GetCode(status) == 0) {
    api().TF_ShapeInferenceContextSetOutput(context, output, shape, status);
  }
  api().TF_DeleteShapeHandle(shape);
}

}  // namespace collectives::tensorflow
