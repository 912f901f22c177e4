#include "bindings/tensorflow/c_api.h"

#include <dlfcn.h>

namespace collectives::tensorflow {
namespace {

Api g_api;

// Looks the library up by name, since not all releases load it with global symbols. Does not load it: a second copy
// would have a registry of ops of its own.
void* loaded_library() {
  for (const char* name : {"libtensorflow_framework.so.2", "libtensorflow_framework.so"}) {
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_NOLOAD); handle != nullptr) {
      return handle;
    }
  }
  return nullptr;
}

}  // namespace

const Api& api() { return g_api; }

std::string load_api() {
  void* const library = loaded_library();
  if (library == nullptr) {
    return "libtensorflow_framework.so.2 is not loaded in this process; import tensorflow first";
  }
  std::string missing;
  const auto look_up = [&](auto& function, const char* name) {
    void* const symbol = dlsym(library, name);
    if (symbol == nullptr) {
      missing += std::string(missing.empty() ? "" : ", ") + name;
    }
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
#define COLLECTIVES_LOOK_UP(name) look_up(g_api.name, #name)
  COLLECTIVES_LOOK_UP(TF_NewStatus);
  COLLECTIVES_LOOK_UP(TF_DeleteStatus);
  COLLECTIVES_LOOK_UP(TF_SetStatus);
  COLLECTIVES_LOOK_UP(TF_GetCode);
  COLLECTIVES_LOOK_UP(TF_Message);
  COLLECTIVES_LOOK_UP(TF_NewTensor);
  COLLECTIVES_LOOK_UP(TF_AllocateTensor);
  COLLECTIVES_LOOK_UP(TF_DeleteTensor);
  COLLECTIVES_LOOK_UP(TF_TensorType);
  COLLECTIVES_LOOK_UP(TF_NumDims);
  COLLECTIVES_LOOK_UP(TF_Dim);
  COLLECTIVES_LOOK_UP(TF_TensorByteSize);
  COLLECTIVES_LOOK_UP(TF_TensorData);
  COLLECTIVES_LOOK_UP(TF_NewOpDefinitionBuilder);
  COLLECTIVES_LOOK_UP(TF_OpDefinitionBuilderAddAttr);
  COLLECTIVES_LOOK_UP(TF_OpDefinitionBuilderAddInput);
  COLLECTIVES_LOOK_UP(TF_OpDefinitionBuilderAddOutput);
  COLLECTIVES_LOOK_UP(TF_OpDefinitionBuilderSetIsStateful);
  COLLECTIVES_LOOK_UP(TF_OpDefinitionBuilderSetShapeInferenceFunction);
  COLLECTIVES_LOOK_UP(TF_RegisterOpDefinition);
  COLLECTIVES_LOOK_UP(TF_ShapeInferenceContextNumInputs);
  COLLECTIVES_LOOK_UP(TF_NewShapeHandle);
  COLLECTIVES_LOOK_UP(TF_DeleteShapeHandle);
  COLLECTIVES_LOOK_UP(TF_ShapeInferenceContextGetInput);
  COLLECTIVES_LOOK_UP(TF_ShapeInferenceContextSetOutput);
  COLLECTIVES_LOOK_UP(TF_ShapeInferenceContextSetUnknownShape);
  COLLECTIVES_LOOK_UP(TF_NewKernelBuilder);
  COLLECTIVES_LOOK_UP(TF_NewAsyncKernelBuilder);
  COLLECTIVES_LOOK_UP(TF_RegisterKernelBuilder);
  COLLECTIVES_LOOK_UP(TF_OpKernelConstruction_Failure);
  COLLECTIVES_LOOK_UP(TF_OpKernelConstruction_GetAttrInt64);
  COLLECTIVES_LOOK_UP(TF_OpKernelConstruction_GetAttrFloat);
  COLLECTIVES_LOOK_UP(TF_OpKernelConstruction_GetAttrSize);
  COLLECTIVES_LOOK_UP(TF_OpKernelConstruction_GetAttrString);
  COLLECTIVES_LOOK_UP(TF_OpKernelConstruction_GetAttrStringList);
  COLLECTIVES_LOOK_UP(TF_NumInputs);
  COLLECTIVES_LOOK_UP(TF_NumOutputs);
  COLLECTIVES_LOOK_UP(TF_GetInput);
  COLLECTIVES_LOOK_UP(TF_SetOutput);
  COLLECTIVES_LOOK_UP(TF_ForwardInputOrAllocateOutput);
  COLLECTIVES_LOOK_UP(TF_AllocateOutput);
  COLLECTIVES_LOOK_UP(TF_OpKernelContext_Failure);
  COLLECTIVES_LOOK_UP(TF_StepId);
#undef COLLECTIVES_LOOK_UP
  g_api.set_is_distributed_communication = reinterpret_cast<void* (*)(TfOpDefinitionBuilder*)>(
      dlsym(library, "_ZN10tensorflow12OpDefBuilder29SetIsDistributedCommunicationEv"));
  return missing.empty() ? "" : "this TensorFlow lacks " + missing + " of its C API; 2.16 and later have them";
}

}  // namespace collectives::tensorflow
