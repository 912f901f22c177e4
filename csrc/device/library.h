// The library with the CUDA kernels: found and loaded when device memory is first used.
#pragma once

#include <string>
#include <vector>

#include "core/device.h"

namespace collectives {

struct DeviceStatus {
  bool available = false;
  std::string reason;                // why not, and what to do; empty where devices can be used
  std::string library;               // the file that was looked for
  std::vector<std::string> devices;  // their names
  int driver = 0;                    // versions, as 13000 for 13.0; 0 where unknown
  int runtime = 0;
};

// Looks once per process; a machine does not get devices later on.
const DeviceStatus& device_status();

// The functions of the library. Throws CollectivesError (kBackend) with the reason where devices cannot be used.
const DeviceApi& device_api();

// Throws CollectivesError (kBackend) for what a function of the library returned, with its name and text. what: what
// was being done, "copying 8 bytes".
[[noreturn]] void device_failed(int code, const std::string& what);

// The same unless `code` is kDeviceOk.
inline void check_device(int code, const char* what) {
  if (code != kDeviceOk) [[unlikely]] {
    device_failed(code, what);
  }
}

// The device of the calling thread, which is put back in the end.
class CurrentDevice {
 public:
  CurrentDevice();
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  void use(int device);

 private:
  const DeviceApi& api_;
  int before_ = 0;
  int now_ = 0;
};

}  // namespace collectives
