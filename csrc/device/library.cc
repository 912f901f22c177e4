#include "device/library.h"

#include <dlfcn.h>
#include <unistd.h>

#include "core/distribution.h"
#include "core/environment.h"
#include "core/error.h"

namespace collectives {
namespace {

// cudaErrorInsufficientDriver, which also stands for no driver at all, and cudaErrorNoDevice.
constexpr int kNoDriver = 35;
constexpr int kNoDevice = 100;

struct Library {
  const DeviceApi* api = nullptr;  // where devices can be used
  DeviceStatus status;
};

std::string beside_the_engine() {
  Dl_info found{};
  dladdr(reinterpret_cast<const void*>(&device_status), &found);
  const std::string path = found.dli_fname == nullptr ? "" : found.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + "libcollectives_cuda.so";
}

// The library is never closed: threads of the driver may run its code until the process ends.
const DeviceApi* open(DeviceStatus& status) {
  const auto named = environment("COLLECTIVES_CUDA_LIB");
  status.library = named ? *named : beside_the_engine();
  if (!named && access(status.library.c_str(), F_OK) != 0) {
    status.reason = "this installation was built without CUDA (there is no " + status.library +
                    "); where nvcc is installed, `pip install --force-reinstall --no-binary " COLLECTIVES_DISTRIBUTION
                    " --config-settings=cmake.define.COLLECTIVES_CUDA=ON " COLLECTIVES_DISTRIBUTION
                    "` builds it with CUDA";
    return nullptr;
  }
  void* const handle = dlopen(status.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    status.reason =
        "the library with the CUDA kernels cannot be loaded: " + std::string(dlerror()) +
        (named ? "; it is the one that COLLECTIVES_CUDA_LIB names" : "; install " COLLECTIVES_DISTRIBUTION " anew");
    return nullptr;
  }
  const auto function = reinterpret_cast<DeviceApiFunction>(dlsym(handle, kDeviceApiSymbol));
  const DeviceApi* api = function == nullptr ? nullptr : function(kDeviceApiVersion);
  if (api == nullptr || api->version != kDeviceApiVersion) {
    status.reason =
        status.library +
        (function == nullptr
             ? " has no function " + std::string(kDeviceApiSymbol)
             : " is of another version of collectives (it has no table " + std::to_string(kDeviceApiVersion) + ")") +
        "; " + (named ? "correct COLLECTIVES_CUDA_LIB, or do without it" : "install " COLLECTIVES_DISTRIBUTION " anew");
    return nullptr;
  }
  return api;
}

std::string why_no_devices(const DeviceApi& api, int code) {
  if (code == kNoDriver) {
    return "there is no NVIDIA driver on this machine, or it is older than the library needs; install a driver for "
           "CUDA 13 or newer, and start containers with access to it (`docker run --gpus all`)";
  }
  if (code == kNoDevice || code == kDeviceOk) {
    return "the NVIDIA driver finds no device; look at `nvidia-smi` and CUDA_VISIBLE_DEVICES, and start containers "
           "with access to the devices (`docker run --gpus all`)";
  }
  return "the CUDA runtime cannot be used: " + std::string(api.error_name(code)) + " (" + api.error_text(code) +
         "); look at `nvidia-smi`";
}

Library look() {
  Library found;
  const DeviceApi* api = open(found.status);
  if (api == nullptr) {
    return found;
  }
  int count = 0;
  const int code = api->device_count(&count);
  if (api->versions(&found.status.driver, &found.status.runtime) != kDeviceOk) {
    found.status.driver = found.status.runtime = 0;
  }
  if (code != kDeviceOk || count == 0) {
    found.status.reason = why_no_devices(*api, code);
    return found;
  }
  for (int device = 0; device < count; ++device) {
    char name[256] = "";
    const bool named = api->device_name(device, name, sizeof name) == kDeviceOk;
    found.status.devices.emplace_back(named ? name : "unknown");
  }
  found.status.available = true;
  found.api = api;
  return found;
}

const Library& library() {
  static const Library found = look();
  return found;
}

[[noreturn]] void fail(const std::string& text) { throw CollectivesError(ErrorKind::kBackend, text, {}); }

}  // namespace

const DeviceStatus& device_status() { return library().status; }

const DeviceApi& device_api() {
  const Library& found = library();
  if (found.api == nullptr) {
    fail("GPU arrays cannot be used: " + found.status.reason);
  }
  return *found.api;
}

void device_failed(int code, const std::string& what) {
  const DeviceApi& api = device_api();
  const std::string name = api.error_name(code);
  const bool memory = name.find("Memory") != std::string::npos;
  fail(what + " failed: " + name + " (" + api.error_text(code) + "); " +
       (memory ? "free memory of the device, or use smaller arrays"
               : "errors of earlier work on a device appear late: run with CUDA_LAUNCH_BLOCKING=1 to see where it "
                 "began, and look at `nvidia-smi`"));
}

CurrentDevice::CurrentDevice() : api_(device_api()) {
  check_device(api_.get_device(&before_), "asking for the current device");
  now_ = before_;
}

CurrentDevice::~CurrentDevice() {
  if (now_ != before_ && before_ >= 0) {
    api_.set_device(before_);
  }
}

void CurrentDevice::use(int device) {
  if (device != now_) {
    if (const int code = api_.set_device(device); code != kDeviceOk) {
      device_failed(code, "changing to device " + std::to_string(device));
    }
    now_ = device;
  }
}

}  // namespace collectives
