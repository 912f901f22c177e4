// The table of core/device.h by the CUDA runtime, and the one symbol of the library.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

#include "core/device.h"
#include "cuda/device.h"
#include "cuda/reduce.h"

namespace collectives {
namespace {

cudaError_t error_of(int code) { return code == kDeviceNotReady ? cudaErrorNotReady : static_cast<cudaError_t>(code); }
cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

const char* error_name(int code) { return cudaGetErrorName(error_of(code)); }
const char* error_text(int code) { return cudaGetErrorString(error_of(code)); }

int device_count(int* count) {
  *count = 0;  // without a driver the runtime does not set it
  const cudaError_t error = cudaGetDeviceCount(count);
  if (error != cudaSuccess) *count = 0;
  return code_of(error);
}

int device_name(int device, char* name, int bytes) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error == cudaSuccess) std::snprintf(name, static_cast<std::size_t>(bytes), "%s", properties.name);
  return code_of(error);
}

int device_bus_id(int device, char* id, int bytes) { return code_of(cudaDeviceGetPCIBusId(id, bytes, device)); }

int versions(int* driver, int* runtime) {
  const int code = code_of(cudaDriverGetVersion(driver));
  return code != kDeviceOk ? code : code_of(cudaRuntimeGetVersion(runtime));
}

int get_device(int* device) {
  const int code = code_of(cudaGetDevice(device));
  if (code == kDeviceOk && !in_use(*device)) *device = -1;
  return code;
}
int set_device(int device) { return code_of(cudaSetDevice(device)); }

int pointer_device(const void* pointer, int* device) {
  cudaPointerAttributes attributes;
  const cudaError_t error = cudaPointerGetAttributes(&attributes, pointer);
  if (error != cudaSuccess) return code_of(error);
  const bool of_device = attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  *device = of_device ? attributes.device : -1;
  return kDeviceOk;
}

int enable_peer(int device, int peer, int* yes) {
  *yes = 1;
  if (device == peer) return kDeviceOk;
  cudaError_t error = cudaDeviceCanAccessPeer(yes, device, peer);
  if (error != cudaSuccess || *yes == 0) return code_of(error);
  const DeviceScope scope(device);
  if (scope.error() != cudaSuccess) return code_of(scope.error());
  error = cudaDeviceEnablePeerAccess(peer, 0);
  const int code = code_of(error);
  return error == cudaErrorPeerAccessAlreadyEnabled ? kDeviceOk : code;
}

int stream_create(int device, void** stream) {
  const DeviceScope scope(device);
  if (scope.error() != cudaSuccess) return code_of(scope.error());
  cudaStream_t made = nullptr;
  const int code = code_of(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  *stream = made;
  if (code == kDeviceOk) load_kernels(device);
  return code;
}

int stream_destroy(void* stream) { return code_of(cudaStreamDestroy(stream_of(stream))); }

int stream_capturing(void* stream, int* yes) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const int code = code_of(cudaStreamIsCapturing(stream_of(stream), &status));
  *yes = static_cast<int>(status != cudaStreamCaptureStatusNone);
  return code;
}

int event_create(int device, bool shared, void** event) {
  const DeviceScope scope(device);
  if (scope.error() != cudaSuccess) return code_of(scope.error());
  cudaEvent_t made = nullptr;
  const unsigned flags = cudaEventDisableTiming | (shared ? cudaEventInterprocess : 0);
  const int code = code_of(cudaEventCreateWithFlags(&made, flags));
  *event = made;
  return code;
}

int event_destroy(void* event) { return code_of(cudaEventDestroy(event_of(event))); }
int event_record(void* event, void* stream) { return code_of(cudaEventRecord(event_of(event), stream_of(stream))); }
int event_query(void* event) {
  const Uncaptured scope;
  return code_of(cudaEventQuery(event_of(event)));
}
int stream_wait(void* stream, void* event) {
  return code_of(cudaStreamWaitEvent(stream_of(stream), event_of(event), cudaEventWaitDefault));
}

int allocate(int device, std::int64_t bytes, void** memory) {
  const DeviceScope scope(device);
  if (scope.error() != cudaSuccess) return code_of(scope.error());
  const Uncaptured uncaptured;
  // cudaMalloc and not a pool, whose memory other processes cannot open by a handle.
  return code_of(cudaMalloc(memory, static_cast<std::size_t>(bytes)));
}

int release(void* memory) {
  const Uncaptured scope;
  return code_of(cudaFree(memory));
}

int allocate_pinned(std::int64_t bytes, void** memory) {
  const Uncaptured scope;
  return code_of(cudaHostAlloc(memory, static_cast<std::size_t>(bytes), cudaHostAllocPortable));
}

int release_pinned(void* memory) {
  const Uncaptured scope;
  return code_of(cudaFreeHost(memory));
}

int copy(void* destination, const void* source, std::int64_t bytes, void* stream) {
  return code_of(
      cudaMemcpyAsync(destination, source, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_of(stream)));
}

int export_memory(void* memory, DeviceMemoryHandle* handle) {
  static_assert(sizeof(cudaIpcMemHandle_t) == kDeviceHandleBytes);
  cudaPointerAttributes attributes;
  cudaError_t error = cudaPointerGetAttributes(&attributes, memory);
  if (error != cudaSuccess) return code_of(error);
  if (attributes.type != cudaMemoryTypeDevice) return static_cast<int>(cudaErrorInvalidValue);
  const DeviceScope scope(attributes.device);
  if (scope.error() != cudaSuccess) return code_of(scope.error());
  error = cudaSetDevice(attributes.device);  // the driver functions below need its context to be current
  if (error != cudaSuccess) return code_of(error);
  static const auto range =
      reinterpret_cast<PFN_cuMemGetAddressRange_v3020>(driver_function("cuMemGetAddressRange", 3020));
  if (range == nullptr) return static_cast<int>(cudaErrorCallRequiresNewerDriver);
  CUdeviceptr base = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  if (range(&base, nullptr, address) != CUDA_SUCCESS) return static_cast<int>(cudaErrorInvalidValue);
  cudaIpcMemHandle_t exported;
  error = cudaIpcGetMemHandle(&exported, reinterpret_cast<void*>(base));
  if (error != cudaSuccess) return code_of(error);
  std::memcpy(handle->allocation, &exported, sizeof(exported));
  handle->offset = static_cast<std::int64_t>(address - base);
  return kDeviceOk;
}

int open_memory(const DeviceMemoryHandle* handle, int device, void** base) {
  const DeviceScope scope(device);
  if (scope.error() != cudaSuccess) return code_of(scope.error());
  cudaIpcMemHandle_t exported;
  std::memcpy(&exported, handle->allocation, sizeof(exported));
  return code_of(cudaIpcOpenMemHandle(base, exported, cudaIpcMemLazyEnablePeerAccess));
}

int close_memory(void* base) { return code_of(cudaIpcCloseMemHandle(base)); }

int export_event(void* event, DeviceEventHandle* handle) {
  static_assert(sizeof(cudaIpcEventHandle_t) == kDeviceHandleBytes);
  cudaIpcEventHandle_t exported;
  const int code = code_of(cudaIpcGetEventHandle(&exported, event_of(event)));
  if (code == kDeviceOk) std::memcpy(handle->bytes, &exported, sizeof(exported));
  return code;
}

int open_event(const DeviceEventHandle* handle, int device, void** event) {
  const DeviceScope scope(device);
  if (scope.error() != cudaSuccess) return code_of(scope.error());
  cudaIpcEventHandle_t exported;
  std::memcpy(&exported, handle->bytes, sizeof(exported));
  cudaEvent_t opened = nullptr;
  const int code = code_of(cudaIpcOpenEventHandle(&opened, exported));
  *event = opened;
  return code;
}

constexpr DeviceApi kApi = {
    .version = kDeviceApiVersion,
    .error_name = error_name,
    .error_text = error_text,
    .device_count = device_count,
    .device_name = device_name,
    .device_bus_id = device_bus_id,
    .versions = versions,
    .get_device = get_device,
    .set_device = set_device,
    .pointer_device = pointer_device,
    .enable_peer = enable_peer,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_capturing = stream_capturing,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .stream_wait = stream_wait,
    .allocate = allocate,
    .release = release,
    .allocate_pinned = allocate_pinned,
    .release_pinned = release_pinned,
    .copy = copy,
    .reduce = launch_reduction,
    .export_memory = export_memory,
    .open_memory = open_memory,
    .close_memory = close_memory,
    .export_event = export_event,
    .open_event = open_event,
};

}  // namespace
}  // namespace collectives

extern "C" __attribute__((visibility("default"))) const collectives::DeviceApi* collectives_device_api(int version) {
  return version == collectives::kDeviceApiVersion ? &collectives::kApi : nullptr;
}
