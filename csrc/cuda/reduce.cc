#include "cuda/reduce.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "cuda/device.h"
#include "cuda/kernels.h"
#include "cuda/plan.h"

namespace collectives {
namespace {

// Of each of the first devices: whether its kernels are loaded.
constexpr int kKnownDevices = 64;
std::array<std::atomic<bool>, kKnownDevices> g_loaded;

const void* kernel_of(const Choice& choice) {
  switch (choice.family) {
    case Family::kHalves:
      return kernel_of_halves(choice);
    case Family::kFloats:
      return kernel_of_floats(choice);
    case Family::kFloat8:
      return kernel_of_float8(choice);
    case Family::kIntegers:
      return kernel_of_integers(choice);
    case Family::kBits:
      return kernel_of_bits(choice);
  }
  return nullptr;
}

std::vector<const void*> all_kernels() {
  std::vector<const void*> kernels;
  for (int family = 0; family < kFamilies; ++family) {
    for (int dtype = 0; dtype < kDTypes; ++dtype) {
      for (int op = 0; op < kOps; ++op) {
        for (int order = 0; order < kOrders; ++order) {
          const Choice choice = {static_cast<Family>(family), static_cast<DType>(dtype), static_cast<Op>(op),
                                 static_cast<Order>(order)};
          if (const void* kernel = kernel_of(choice)) kernels.push_back(kernel);
        }
      }
    }
  }
  std::sort(kernels.begin(), kernels.end());
  kernels.erase(std::unique(kernels.begin(), kernels.end()), kernels.end());
  return kernels;
}

cudaError_t load_unless_capturing(int device, cudaStream_t stream) {
  if (device >= kKnownDevices || g_loaded[device].load(std::memory_order_acquire)) return cudaSuccess;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(stream, &status);
  if (error == cudaSuccess && status == cudaStreamCaptureStatusNone) load_kernels(device);
  return error;
}

// A thread for every pack, which was measured to be faster than threads that loop over packs (docs/gpu.md).
cudaError_t launch(const Choice& choice, const AnyPlan& plan, cudaStream_t stream) {
  const std::int64_t blocks = (plan.packs + plan.loose + kThreads - 1) / kThreads;
  if (blocks > std::numeric_limits<int>::max()) return cudaErrorInvalidValue;  // 137 GB of single bytes, or 2 TB
  const bool fixed = is_fixed(choice.order);
  const LaunchPlan<kMostFixedOperands> few = fixed ? shortened(plan) : LaunchPlan<kMostFixedOperands>{};
  const void* argument = fixed ? static_cast<const void*>(&few) : &plan;
  void* arguments[] = {const_cast<void*>(argument)};  // NOLINT(cppcoreguidelines-pro-type-const-cast): copied from
  return cudaLaunchKernel(kernel_of(choice), dim3(static_cast<unsigned>(blocks)), dim3(kThreads), arguments, 0, stream);
}

}  // namespace

void load_kernels(int device) {
  if (device < 0 || device >= kKnownDevices || g_loaded[device].load(std::memory_order_acquire)) return;
  // Loading is allowed, and harmless, while this thread records a graph in another stream.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (code_of(cudaThreadExchangeStreamCaptureMode(&mode)) != kDeviceOk) return;
  const std::vector<const void*> kernels = all_kernels();
  const bool loaded = std::all_of(kernels.begin(), kernels.end(), [](const void* kernel) {
    cudaFuncAttributes attributes;
    return code_of(cudaFuncGetAttributes(&attributes, kernel)) == kDeviceOk;  // if not, the launch returns the error
  });
  code_of(cudaThreadExchangeStreamCaptureMode(&mode));
  g_loaded[device].store(loaded, std::memory_order_release);
}

int launch_reduction(const DeviceReduction* reduction, void* stream) {
  Choice choice;
  AnyPlan plan;
  if (!make_plan(*reduction, choice, plan)) return static_cast<int>(cudaErrorInvalidValue);
  if (reduction->count == 0) return kDeviceOk;
  auto* const on = static_cast<cudaStream_t>(stream);
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);  // the stream cannot be asked for its device while it is captured
  if (error == cudaSuccess) error = load_unless_capturing(device, on);
  if (error == cudaSuccess) error = launch(choice, plan, on);
  return code_of(error);
}

}  // namespace collectives
