// What ranks exchange over the host's communicator so that each can address the device memory of the others
// (device/peers.h): once an endpoint, and for each call a header and the spans of its arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/types.h"

namespace collectives {

// How others reach the memory and the events of a rank's device. Exchanged once.
struct DeviceEndpoint {
  std::uint64_t process = 0;
  std::int32_t rank = 0;
  std::int32_t device = 0;
  std::uint64_t probe = 0;
  std::uint64_t ready = 0;
  std::uint64_t done = 0;
  std::int32_t exported = 0;  // kDeviceOk, or the error code of the system, which then gives no handles
  std::int32_t unused = 0;
  DeviceMemoryHandle probe_handle{};
  DeviceEventHandle ready_handle{};
  DeviceEventHandle done_handle{};
};

// A span of a rank's device memory, as that rank and as other processes address it.
struct DeviceSpan {
  std::uint64_t pointer = 0;
  std::int64_t bytes = 0;
  DeviceMemoryHandle handle{};
};

// Describes a call of a rank. The spans of its arrays follow.
struct DeviceCallHeader {
  Collective collective{};
  Op op{};
  DType dtype{};
  bool in_place = false;
  bool hidden = false;  // some of the memory cannot be exported to other processes
  std::int32_t root = 0;
  std::int32_t inputs = 0;
  std::int32_t outputs = 0;
  std::int64_t count = 0;
  std::uint64_t lengths = 0;  // a hash of the lengths and shapes on which all ranks have to agree

  bool fits(const DeviceCallHeader& other) const {
    return collective == other.collective && op == other.op && dtype == other.dtype && root == other.root &&
           count == other.count && lengths == other.lengths;
  }
  std::string text() const;
};

template <typename T>
void put(std::vector<std::byte>& to, const T& value) {
  const std::size_t end = to.size();
  to.resize(end + sizeof(value));
  std::memcpy(to.data() + end, &value, sizeof(value));
}

template <typename T>
T get(std::span<const std::byte> from, std::size_t at) {
  T value;
  std::memcpy(&value, from.data() + at, sizeof(value));
  return value;
}

}  // namespace collectives
