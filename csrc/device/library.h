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

// Looks for devices once per process, when it is first called.
const DeviceStatus& device_status();

// The functions of the library. Throws CollectivesError (kBackend) with the reason where devices cannot be used.
const DeviceApi& device_api();

// Throws CollectivesError (kBackend) with the name and text of an error code of the library. what: the operation that
// failed, such as "copying 8 bytes".
[[noreturn]] void device_failed(int code, const std::string& what);

// The same unless `code` is kDeviceOk.
inline void check_device(int code, const char* what) {
  if (code != kDeviceOk) [[unlikely]] {
    device_failed(code, what);
  }
}

// Sets the current device of the calling thread; restores it at the end of the scope.
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
