// What the functions of the table of core/device.h share: error codes, and the current device.
#pragma once

#include <cuda_runtime_api.h>

namespace collectives {

// The code that the table returns for an error. Clears the last error that the runtime keeps for the thread, which
// later calls of the program would find otherwise.
int code_of(cudaError_t error);

// Whether the process has a context on the device. Making a device without one the current device again would create
// one, which takes hundreds of megabytes of its memory.
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
  int before_ = -1;  // the device to restore; -1: none
};

// Until the end of the scope, calls of this thread that are unsafe during a stream capture are allowed and do not
// invalidate a graph that is being recorded in another stream.
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

// A function of the driver, nullptr where there is no driver: it is not linked, so that the library loads without it.
void* driver_function(const char* name, unsigned version);

}  // namespace collectives
