// Host memory that devices copy from and to, and host waits for devices: for arrays on devices whose collective runs in
// host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "device/events.h"

namespace collectives {

// An event that the host may query, unlike those of Events.
class DeviceEvent {
 public:
  explicit DeviceEvent(int device);
  ~DeviceEvent();
  DeviceEvent(DeviceEvent&& other) noexcept;
  DeviceEvent& operator=(DeviceEvent&& other) noexcept;

  // The event happens when all work that the stream holds now is done.
  void record(const DeviceStream& stream);
  // True also before the first record().
  bool done() const;
  // Returns when done() is true; CollectivesError (kDeadline) after `seconds`, where they are not negative.
  void wait(double seconds) const;
  // Work that is put into the stream from now on waits for the event.
  void stream_wait(const DeviceStream& stream) const;
  int device() const { return device_; }

 private:
  int device_;
  void* event_ = nullptr;
};

// Puts a copy between any two memories, of devices or the host, into a stream.
void device_copy(void* destination, const void* source, std::int64_t bytes, const DeviceStream& stream);

// A pinned buffer. Its memory goes back to a pool, from which another buffer gets it once all copies are done.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(std::int64_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  std::byte* data() const { return block_.memory; }
  std::int64_t bytes() const { return bytes_; }

  // Copy `bytes` bytes between device memory and this buffer, from `offset` on. Throw ArgumentError where they do not
  // fit, and CollectivesError (kBackend) where a CUDA graph is recorded in the stream, since the host could not wait
  // for the copy.
  void copy_in(std::int64_t offset, const void* source, std::int64_t bytes, const DeviceStream& stream);
  void copy_out(std::int64_t offset, void* destination, std::int64_t bytes, const DeviceStream& stream);
  // Waits for the copies so far, as DeviceEvent::wait.
  void wait(double seconds) const;

  struct Block {
    std::byte* memory = nullptr;
    std::int64_t bytes = 0;
    // Copies that may still run: of each stream the latest.
    std::vector<std::pair<DeviceStream, DeviceEvent>> copies;
    bool lost = false;  // a copy may run for which no event could be recorded
  };

 private:
  void check(std::int64_t offset, std::int64_t bytes, const DeviceStream& stream);
  DeviceEvent& event_for(const DeviceStream& stream);
  void copy(void* destination, const void* source, std::int64_t bytes, const DeviceStream& stream);

  std::int64_t bytes_;
  Block block_;
};

// Releases the pool. Waits for copies that still run.
void drop_pinned();

}  // namespace collectives
