#include "device/events.h"

#include <algorithm>
#include <mutex>
#include <string>

#include "core/error.h"

namespace collectives {
namespace {

struct Pool {
  std::mutex mutex;
  std::vector<std::vector<void*>> idle;  // of each device
};

// Never destroyed: at the end of the process the driver may be gone before static objects are.
Pool& pool() {
  static Pool* const all = new Pool();
  return *all;
}

}  // namespace

void* Events::acquire(int device) {
  acquired_.emplace_back(device, nullptr);  // first: if this throws, no event is lost
  {
    Pool& all = pool();
    const std::lock_guard lock(all.mutex);
    const auto index = static_cast<std::size_t>(device);
    if (index < all.idle.size() && !all.idle[index].empty()) {
      acquired_.back().second = all.idle[index].back();
      all.idle[index].pop_back();
      return acquired_.back().second;
    }
  }
  const int code = device_api().event_create(device, false, &acquired_.back().second);
  if (code != kDeviceOk) {
    acquired_.pop_back();
  }
  check_device(code, "making an event");
  return acquired_.back().second;
}

Events::~Events() {
  Pool& all = pool();
  const std::lock_guard lock(all.mutex);
  for (const auto& [device, event] : acquired_) {
    all.idle.resize(std::max(all.idle.size(), static_cast<std::size_t>(device) + 1));
    all.idle[static_cast<std::size_t>(device)].push_back(event);
  }
}

void drop_events() {
  Pool& all = pool();
  const std::lock_guard lock(all.mutex);
  for (const std::vector<void*>& events : all.idle) {
    for (void* const event : events) {
      device_api().event_destroy(event);
    }
  }
  all.idle.clear();
}

void* record_event(Events& events, CurrentDevice& current, const DeviceStream& stream) {
  void* const event = events.acquire(stream.device);
  current.use(stream.device);
  check_device(device_api().event_record(event, stream.stream), "recording an event");
  return event;
}

void wait_for(CurrentDevice& current, const DeviceStream& stream, void* event) {
  current.use(stream.device);
  check_device(device_api().stream_wait(stream.stream, event), "making a stream wait for an event");
}

bool capturing(CurrentDevice& current, std::span<const DeviceStream> streams) {
  int first = 0;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    int yes = 0;
    current.use(streams[i].device);
    check_device(device_api().stream_capturing(streams[i].stream, &yes), "asking whether a graph is recorded");
    if (i > 0 && yes != first) {
      throw CollectivesError(ErrorKind::kBackend,
                             "a CUDA graph is recorded in the stream of replica " + std::to_string(yes != 0 ? i : 0) +
                                 " but not in that of replica " + std::to_string(yes != 0 ? 0 : i) +
                                 "; record both, or none",
                             {});
    }
    first = yes;
  }
  return first != 0;
}

}  // namespace collectives
