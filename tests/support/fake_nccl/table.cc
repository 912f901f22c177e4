// The table of devices: as much of it as NCCL's side needs.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/device.h"
#include "fake.h"

namespace fake {

thread_local int current_device = 0;

namespace {

constexpr int kDevices = 8;

struct Event {
  void* stream = nullptr;
  std::uint64_t after = 0;
  int device = 0;
};

std::mutex g_mutex;
std::map<void*, Stream> g_streams;

int record(void* event, void* stream) {
  if (const int code = called("event_record")) {
    return code;
  }
  const std::lock_guard guard(g_mutex);
  auto* recorded = static_cast<Event*>(event);
  if (reinterpret_cast<std::uintptr_t>(stream) <= 2 && current_device != recorded->device) {
    return 400;  // a default stream is that of the current device
  }
  recorded->stream = stream;
  recorded->after = g_streams[stream].issued;
  return 0;
}

int query(void* event) {
  if (const int code = called("event_query")) {
    return code;
  }
  const std::lock_guard guard(g_mutex);
  const auto* recorded = static_cast<Event*>(event);
  return g_streams[recorded->stream].done >= recorded->after ? collectives::kDeviceOk : collectives::kDeviceNotReady;
}

int bus_id(int device, char* id, int bytes) {
  if (device < 0 || device >= kDevices) {
    return 101;
  }
  std::snprintf(id, static_cast<std::size_t>(bytes), "0000:%02x:00.0", device + setting("bus_offset"));
  return 0;
}

}  // namespace

void stream_issued(void* stream) {
  const std::lock_guard guard(g_mutex);
  ++g_streams[stream].issued;
}
void stream_done(void* stream) {
  const std::lock_guard guard(g_mutex);
  ++g_streams[stream].done;
}

namespace {

collectives::DeviceApi make_table() {
  collectives::DeviceApi api{};
  api.version = collectives::kDeviceApiVersion;
  api.error_name = [](int) { return "fakeError"; };
  api.error_text = [](int) { return "an error of the fake device"; };
  api.device_count = [](int* count) {
    *count = kDevices;
    return 0;
  };
  api.device_name = [](int, char* name, int bytes) {
    std::snprintf(name, static_cast<std::size_t>(bytes), "fake");
    return 0;
  };
  api.device_bus_id = bus_id;
  api.versions = [](int* driver, int* runtime) {
    *driver = *runtime = 13000;
    return 0;
  };
  api.get_device = [](int* device) {
    *device = current_device;
    return 0;
  };
  api.set_device = [](int device) {
    if (device < 0 || device >= kDevices) {
      return 101;
    }
    current_device = device;
    return 0;
  };
  api.pointer_device = [](const void*, int* device) {
    *device = current_device;
    return 0;
  };
  api.stream_capturing = [](void*, int* yes) {
    *yes = setting("capturing");
    return 0;
  };
  api.event_create = [](int device, bool, void** event) {
    *event = new Event{nullptr, 0, device};
    return static_cast<int>(called("event_create"));
  };
  api.event_destroy = [](void* event) {
    delete static_cast<Event*>(event);
    return static_cast<int>(called("event_destroy"));
  };
  api.event_record = record;
  api.event_query = query;
  api.allocate = [](int, std::int64_t bytes, void** memory) {
    *memory = std::malloc(static_cast<std::size_t>(bytes));
    return 0;
  };
  api.release = [](void* memory) {
    std::free(memory);
    return 0;
  };
  return api;
}

}  // namespace
}  // namespace fake

extern "C" const collectives::DeviceApi* collectives_device_api(int) {
  static const collectives::DeviceApi table = fake::make_table();
  return &table;
}
