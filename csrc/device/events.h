// Events, which are pooled from call to call, and the order between work in different streams.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "device/library.h"

namespace collectives {

// A stream of any library, with its device: the handle of a default stream means that of the current device.
struct DeviceStream {
  int device = 0;
  void* stream = nullptr;
  bool operator==(const DeviceStream&) const = default;
};

// The events of one call, which go back to the pool at its end. They may be recorded again at once, though streams
// still wait for them: a wait refers to what was recorded when it was put into its stream. Only an event that the host
// queries must not come from here (see DeviceEvent).
class Events {
 public:
  Events() = default;
  ~Events();
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;
  void* acquire(int device);

 private:
  std::vector<std::pair<int, void*>> acquired_;
};

// Records an event in the stream and returns it.
void* record_event(Events& events, CurrentDevice& current, const DeviceStream& stream);

// Has the stream wait for the event.
void wait_for(CurrentDevice& current, const DeviceStream& stream, void* event);

// Whether work that is put into these streams is recorded into a graph. Throws CollectivesError (kBackend) where that
// holds for some of them only.
bool capturing(CurrentDevice& current, std::span<const DeviceStream> streams);

// Destroys the events that are kept for later calls.
void drop_events();

}  // namespace collectives
