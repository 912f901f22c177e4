#include "cuda/device.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include "core/device.h"

namespace collectives {

bool in_use(int device) {
  static const auto state =
      reinterpret_cast<PFN_cuDevicePrimaryCtxGetState_v7000>(driver_function("cuDevicePrimaryCtxGetState", 7000));
  unsigned flags = 0;
  int active = 0;
  return state == nullptr || state(device, &flags, &active) != CUDA_SUCCESS || active != 0;
}

int code_of(cudaError_t error) {
  if (error == cudaSuccess) return kDeviceOk;
  cudaGetLastError();
  return error == cudaErrorNotReady ? kDeviceNotReady : static_cast<int>(error);
}

DeviceScope::DeviceScope(int device) {
  error_ = cudaGetDevice(&before_);
  const bool change = error_ == cudaSuccess && before_ != device;
  if (!change || !in_use(before_)) before_ = -1;
  if (change) error_ = cudaSetDevice(device);
}

DeviceScope::~DeviceScope() {
  if (before_ >= 0) code_of(cudaSetDevice(before_));
}

void* driver_function(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found);
  if (code_of(error) != kDeviceOk || found != cudaDriverEntryPointSuccess) return nullptr;
  return function;
}

}  // namespace collectives
