// What the functions of the table share: codes of errors, and the current device.
#pragma once

#include <cuda_runtime_api.h>

namespace collectives {

// The code that the table returns. The runtime also keeps the last error of a thread: nothing may find it there later.
int code_of(cudaError_t error);

// Whether the process has used a device. Going back to one that it has not would set it up, which takes hundreds of
// megabytes of its memory.
bool in_use(int device);

// Makes a device the current one of the calling thread, until the end of the scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  DeviceScope(DeviceScope&&) = delete;
  DeviceScope& operator=(DeviceScope&&) = delete;

  cudaError_t error() const { return error_; }

 private:
  cudaError_t error_;
  int before_ = -1;  // -1: nothing to go back to
};

// Until the end of the scope, calls of this thread that a graph being recorded in another stream would not allow do not
// spoil it: they have nothing to do with it.
class Uncaptured {
 public:
  Uncaptured() { exchange(); }
  ~Uncaptured() { exchange(); }
  Uncaptured(const Uncaptured&) = delete;
  Uncaptured& operator=(const Uncaptured&) = delete;
  Uncaptured(Uncaptured&&) = delete;
  Uncaptured& operator=(Uncaptured&&) = delete;

 private:
  void exchange() { code_of(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// A function of the driver. The driver is never linked with: where there is none, this is nullptr.
void* driver_function(const char* name, unsigned version);

}  // namespace collectives
