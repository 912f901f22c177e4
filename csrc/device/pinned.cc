#include "device/pinned.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "core/error.h"

namespace collectives {
namespace {

constexpr std::int64_t kLeastBytes = 4 << 10;
// The most that the pool keeps; the rest is released when its copies are done.
constexpr std::int64_t kKeepBytes = 256 << 20;
// How often a waiting thread queries an event before it sleeps between queries, and how long it sleeps.
constexpr int kYields = 1000;
constexpr auto kShortest = std::chrono::microseconds(20);
constexpr auto kLongest = std::chrono::microseconds(1000);

struct Pool {
  std::mutex mutex;
  std::vector<PinnedBuffer::Block> idle;
};

Pool& pool() {
  static Pool* const all = new Pool();  // never destroyed: the driver may be gone before static objects are
  return *all;
}

// Whether all copies are done. False where a device has failed, since what it still does is unknown.
bool free_now(const PinnedBuffer::Block& block) {
  try {
    return std::all_of(block.copies.begin(), block.copies.end(), [](const auto& copy) { return copy.second.done(); });
  } catch (const CollectivesError&) {
    return false;
  }
}

void release(PinnedBuffer::Block& block) { device_api().release_pinned(std::exchange(block.memory, nullptr)); }

}  // namespace

DeviceEvent::DeviceEvent(int device) : device_(device) {
  check_device(device_api().event_create(device, false, &event_), "making an event");
}

DeviceEvent::~DeviceEvent() {
  if (event_ != nullptr) {
    device_api().event_destroy(event_);
  }
}

DeviceEvent::DeviceEvent(DeviceEvent&& other) noexcept
    : device_(other.device_), event_(std::exchange(other.event_, nullptr)) {}

DeviceEvent& DeviceEvent::operator=(DeviceEvent&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(event_, other.event_);
  return *this;
}

void DeviceEvent::record(const DeviceStream& stream) {
  CurrentDevice current;
  current.use(stream.device);
  check_device(device_api().event_record(event_, stream.stream), "recording an event");
}

bool DeviceEvent::done() const {
  const int code = device_api().event_query(event_);
  if (code == kDeviceNotReady) {
    return false;
  }
  check_device(code, "waiting for a device");
  return true;
}

void DeviceEvent::wait(double seconds) const {
  const auto begin = std::chrono::steady_clock::now();
  auto pause = kShortest;
  for (int looks = 0; !done(); ++looks) {
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    if (seconds >= 0 && waited.count() >= seconds) {
      ErrorContext context;
      context.age_s = waited.count();
      throw CollectivesError(ErrorKind::kDeadline,
                             "device " + std::to_string(device_) + " has not finished the work before the collective " +
                                 "within " + std::to_string(seconds) +
                                 " s; look for a kernel that does not end, or give a longer timeout",
                             context);
    }
    if (looks < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds(kLongest));
    }
  }
}

void DeviceEvent::stream_wait(const DeviceStream& stream) const {
  CurrentDevice current;
  wait_for(current, stream, event_);
}

void device_copy(void* destination, const void* source, std::int64_t bytes, const DeviceStream& stream) {
  if (bytes == 0) {
    return;
  }
  CurrentDevice current;
  current.use(stream.device);
  if (const int code = device_api().copy(destination, source, bytes, stream.stream); code != kDeviceOk) {
    device_failed(code, "copying " + std::to_string(bytes) + " bytes");
  }
}

PinnedBuffer::PinnedBuffer(std::int64_t bytes) : bytes_(bytes) {
  if (bytes < 0) {
    throw ArgumentError("a buffer of " + std::to_string(bytes) + " bytes");
  }
  const DeviceApi& api = device_api();
  const auto size = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max(bytes, kLeastBytes))));
  {
    Pool& all = pool();
    const std::lock_guard lock(all.mutex);
    const auto found = std::find_if(all.idle.begin(), all.idle.end(),
                                    [&](const Block& block) { return block.bytes == size && free_now(block); });
    if (found != all.idle.end()) {
      block_ = std::move(*found);
      all.idle.erase(found);
      return;
    }
  }
  void* memory = nullptr;
  if (const int code = api.allocate_pinned(size, &memory); code != kDeviceOk) {
    device_failed(code, "allocating " + std::to_string(size) + " bytes of pinned memory");
  }
  block_.memory = static_cast<std::byte*>(memory);
  block_.bytes = size;
}

PinnedBuffer::~PinnedBuffer() {
  if (block_.lost) {
    release(block_);  // waits for the devices
    return;
  }
  std::vector<Block> gone;  // released without the lock, since that may wait for a device
  {
    Pool& all = pool();
    const std::lock_guard lock(all.mutex);
    all.idle.push_back(std::move(block_));
    std::int64_t kept = 0;
    for (const Block& block : all.idle) {
      kept += block.bytes;
    }
    // The oldest go first, but none that a copy may still use.
    std::erase_if(all.idle, [&](Block& block) {
      if (kept <= kKeepBytes || !free_now(block)) {
        return false;
      }
      kept -= block.bytes;
      gone.push_back(std::move(block));
      return true;
    });
  }
  std::for_each(gone.begin(), gone.end(), release);
}

void PinnedBuffer::check(std::int64_t offset, std::int64_t bytes, const DeviceStream& stream) {
  if (offset < 0 || bytes < 0 || bytes > bytes_ - offset) {
    throw ArgumentError(std::to_string(bytes) + " bytes at " + std::to_string(offset) + " of a buffer of " +
                        std::to_string(bytes_) + " bytes");
  }
  CurrentDevice current;
  if (capturing(current, std::span(&stream, 1))) {
    throw CollectivesError(ErrorKind::kBackend,
                           "this collective goes through memory of the host, which cannot be recorded into a CUDA "
                           "graph; call it outside of the graph, or use NCCL",
                           {});
  }
}

DeviceEvent& PinnedBuffer::event_for(const DeviceStream& stream) {
  for (auto& [used, event] : block_.copies) {
    if (used == stream) {
      return event;
    }
  }
  // An event of another stream, whose copies are done, can be used again.
  for (auto& [used, event] : block_.copies) {
    if (used.device == stream.device && event.done()) {
      used = stream;
      return event;
    }
  }
  return block_.copies.emplace_back(stream, DeviceEvent(stream.device)).second;
}

void PinnedBuffer::copy(void* destination, const void* source, std::int64_t bytes, const DeviceStream& stream) {
  DeviceEvent& event = event_for(stream);
  device_copy(destination, source, bytes, stream);
  block_.lost = true;
  event.record(stream);
  block_.lost = false;
}

void PinnedBuffer::copy_in(std::int64_t offset, const void* source, std::int64_t bytes, const DeviceStream& stream) {
  check(offset, bytes, stream);
  copy(data() + offset, source, bytes, stream);
}

void PinnedBuffer::copy_out(std::int64_t offset, void* destination, std::int64_t bytes, const DeviceStream& stream) {
  check(offset, bytes, stream);
  copy(destination, data() + offset, bytes, stream);
}

void PinnedBuffer::wait(double seconds) const {
  for (const auto& [stream, event] : block_.copies) {
    event.wait(seconds);
  }
}

void drop_pinned() {
  std::vector<PinnedBuffer::Block> gone;
  {
    Pool& all = pool();
    const std::lock_guard lock(all.mutex);
    gone.swap(all.idle);
  }
  for (PinnedBuffer::Block& block : gone) {
    for (const auto& [stream, event] : block.copies) {
      try {
        event.wait(-1);
      } catch (const CollectivesError&) {
        break;  // a device has failed; releasing waits for what it still does
      }
    }
    release(block);
  }
}

}  // namespace collectives
