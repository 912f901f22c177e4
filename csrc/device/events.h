// Events and streams that are kept from call to call, and the order of work in different streams.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "device/library.h"

namespace collectives {

// A stream of any library, with its device: the handles of default streams mean those of the current device.
struct DeviceStream {
  int device = 0;
  void* stream = nullptr;
  bool operator==(const DeviceStream&) const = default;
};

// Events for the length of one call. A wait keeps what it was told when the event is recorded anew, so an event that
// nobody asks about can be handed on as soon as the call has put its work into the streams.
class Events {
 public:
  Events() = default;
  ~Events();
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;
  void* take(int device);

 private:
  std::vector<std::pair<int, void*>> taken_;
};

// Returns an event that is recorded in the stream.
void* mark(Events& events, CurrentDevice& current, const DeviceStream& stream);

void wait_for(CurrentDevice& current, const DeviceStream& stream, void* event);

// Whether work that is put into these streams is recorded into a graph: all of it or nothing, else throws
// CollectivesError (kBackend).
bool capturing(CurrentDevice& current, std::span<const DeviceStream> streams);

// Gives all events back that are kept for later calls.
void drop_events();

}  // namespace collectives
