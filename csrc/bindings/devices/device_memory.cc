#include "bindings/devices/device_memory.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "bindings/calls/unlocked.h"
#include "device/library.h"

namespace collectives {
namespace {

namespace py = pybind11;

// Owns memory of a device.
class Memory {
 public:
  Memory(int device, std::int64_t bytes) {
    const std::int64_t least = 1;  // so that every array has an address
    check_device(device_api().allocate(device, std::max(bytes, least), &memory_), "allocating memory of a device");
  }
  ~Memory() {
    const Unlocked unlocked;  // it may wait for the device
    device_api().release(memory_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::uintptr_t pointer() const { return reinterpret_cast<std::uintptr_t>(memory_); }

 private:
  void* memory_ = nullptr;
};

}  // namespace

void bind_device_memory(py::module_& m) {
  py::class_<Memory>(m, "_DeviceMemory", "Memory of a device.")
      .def_property_readonly("pointer", &Memory::pointer, "Its address.");
  m.def(
      "_device_empty", [](int device, std::int64_t bytes) { return std::make_unique<Memory>(device, bytes); },
      "New memory of a device, released with the object.", py::arg("device"), py::arg("bytes"));
  m.def(
      "_device_table", [] { return reinterpret_cast<std::uintptr_t>(&device_api()); },
      "The address of the table of functions for devices (core/device.h).");
}

}  // namespace collectives
