// The part of TensorFlow's C API that is needed, declared here, and a table of its functions that is filled when this
// library is loaded. So it is built without TensorFlow, and one binary works with every release.
//
// Source: the headers tensorflow/c/{c_api,kernels,ops,tf_tensor,tf_status}.h, whose functions are a stable ABI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace collectives::tensorflow {

// Opaque types of TensorFlow.
struct TfTensor;
struct TfStatus;
struct TfKernelBuilder;
struct TfOpDefinitionBuilder;
struct TfConstruction;
struct TfContext;
struct TfShapeContext;
struct TfShape;

// Values of TF_Code.
enum class Code : int {
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kFailedPrecondition = 9,
  kInternal = 13,
  kUnavailable = 14,
};

// Values of TF_DataType that are used by name.
inline constexpr int kTfInt64 = 9;

struct Api {
  TfStatus* (*TF_NewStatus)();
  void (*TF_DeleteStatus)(TfStatus*);
  void (*TF_SetStatus)(TfStatus*, int code, const char* text);
  int (*TF_GetCode)(const TfStatus*);
  const char* (*TF_Message)(const TfStatus*);

  TfTensor* (*TF_NewTensor)(int dtype, const std::int64_t* dims, int num_dims, void* data, std::size_t bytes,
                            void (*deallocator)(void* data, std::size_t bytes, void* argument), void* argument);
  TfTensor* (*TF_AllocateTensor)(int dtype, const std::int64_t* dims, int num_dims, std::size_t bytes);
  void (*TF_DeleteTensor)(TfTensor*);
  int (*TF_TensorType)(const TfTensor*);
  int (*TF_NumDims)(const TfTensor*);
  std::int64_t (*TF_Dim)(const TfTensor*, int dimension);
  std::size_t (*TF_TensorByteSize)(const TfTensor*);
  void* (*TF_TensorData)(const TfTensor*);

  TfOpDefinitionBuilder* (*TF_NewOpDefinitionBuilder)(const char* name);
  void (*TF_OpDefinitionBuilderAddAttr)(TfOpDefinitionBuilder*, const char* specification);
  void (*TF_OpDefinitionBuilderAddInput)(TfOpDefinitionBuilder*, const char* specification);
  void (*TF_OpDefinitionBuilderAddOutput)(TfOpDefinitionBuilder*, const char* specification);
  void (*TF_OpDefinitionBuilderSetIsStateful)(TfOpDefinitionBuilder*, bool stateful);
  void (*TF_OpDefinitionBuilderSetShapeInferenceFunction)(TfOpDefinitionBuilder*,
                                                          void (*function)(TfShapeContext*, TfStatus*));
  void (*TF_RegisterOpDefinition)(TfOpDefinitionBuilder*, TfStatus*);
  // OpDefBuilder::SetIsDistributedCommunication(), a C++ method for which the C API has no function; may be nullptr.
  void* (*set_is_distributed_communication)(TfOpDefinitionBuilder*);

  std::int64_t (*TF_ShapeInferenceContextNumInputs)(TfShapeContext*);
  TfShape* (*TF_NewShapeHandle)();
  void (*TF_DeleteShapeHandle)(TfShape*);
  void (*TF_ShapeInferenceContextGetInput)(TfShapeContext*, int input, TfShape*, TfStatus*);
  void (*TF_ShapeInferenceContextSetOutput)(TfShapeContext*, int output, TfShape*, TfStatus*);
  void (*TF_ShapeInferenceContextSetUnknownShape)(TfShapeContext*, TfStatus*);

  TfKernelBuilder* (*TF_NewKernelBuilder)(const char* op, const char* device, void* (*create)(TfConstruction*),
                                          void (*compute)(void*, TfContext*), void (*destroy)(void*));
  TfKernelBuilder* (*TF_NewAsyncKernelBuilder)(const char* op, const char* device, void* (*create)(TfConstruction*),
                                               void (*compute)(void*, TfContext*, void* done), void (*destroy)(void*));
  void (*TF_RegisterKernelBuilder)(const char* name, TfKernelBuilder*, TfStatus*);

  void (*TF_OpKernelConstruction_Failure)(TfConstruction*, TfStatus*);
  void (*TF_OpKernelConstruction_GetAttrInt64)(TfConstruction*, const char* name, std::int64_t* value, TfStatus*);
  void (*TF_OpKernelConstruction_GetAttrFloat)(TfConstruction*, const char* name, float* value, TfStatus*);
  void (*TF_OpKernelConstruction_GetAttrSize)(TfConstruction*, const char* name, std::int32_t* length,
                                              std::int32_t* bytes, TfStatus*);
  void (*TF_OpKernelConstruction_GetAttrString)(TfConstruction*, const char* name, char* value, std::size_t most,
                                                TfStatus*);
  void (*TF_OpKernelConstruction_GetAttrStringList)(TfConstruction*, const char* name, char** values,
                                                    std::size_t* lengths, int most, void* storage,
                                                    std::size_t storage_bytes, TfStatus*);

  int (*TF_NumInputs)(TfContext*);
  int (*TF_NumOutputs)(TfContext*);
  void (*TF_GetInput)(TfContext*, int input, TfTensor**, TfStatus*);
  void (*TF_SetOutput)(TfContext*, int output, const TfTensor*, TfStatus*);
  TfTensor* (*TF_ForwardInputOrAllocateOutput)(TfContext*, const int* candidates, int num_candidates, int output,
                                               const std::int64_t* dims, int num_dims, int* forwarded, TfStatus*);
  TfTensor* (*TF_AllocateOutput)(TfContext*, int output, int dtype, const std::int64_t* dims, int num_dims,
                                 std::size_t bytes, TfStatus*);
  void (*TF_OpKernelContext_Failure)(TfContext*, TfStatus*);
  std::int64_t (*TF_StepId)(TfContext*);
};

// Fills the table from the TensorFlow of this process. Returns why that fails; empty where it does not.
std::string load_api();

// The table; load_api() must have filled it.
const Api& api();

}  // namespace collectives::tensorflow
