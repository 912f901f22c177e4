// Collectives whose ranks are arrays in the memory of several devices, all driven by one call of one process.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "device/events.h"
#include "schedule/algorithm.h"

namespace collectives {

// What one rank takes part with. An output without data is given memory for as long as the collective runs.
struct DeviceRank {
  DeviceStream place;
  std::vector<Span> input;
  std::vector<Span> output;
};

// A copy on the device of a rank, done after all else.
struct DeviceCopy {
  int rank = 0;
  const void* source = nullptr;
  void* destination = nullptr;
  std::int64_t bytes = 0;
};

// Pieces in which schedules move data through boxes and messages. Each costs several kernels and events.
inline constexpr std::int64_t kDeviceChunkBytes = 4 << 20;

// Puts the schedules of all ranks into streams: the result is there when the work that each rank's stream holds on
// return is done, and the bits are those of the same algorithm in host memory. Nothing waits for a device.
//
// Where all devices can access each other's memory, ranks read and write the arrays of others (MemoryKind::kSymmetric)
// if the algorithm can; else they go through boxes and copies.
//
// Throws ArgumentError where the algorithm does not exist or cannot be used, and CollectivesError (kBackend) where a
// device fails or a CUDA graph is being recorded: the memory for boxes cannot belong to a graph.
void run_device_collective(const Problem& problem, const std::string& algorithm, std::span<const DeviceRank> ranks,
                           std::span<const DeviceCopy> copies = {}, std::int64_t chunk_bytes = kDeviceChunkBytes);

// Releases memory, streams and events that are kept for later calls. Waits for the devices.
void drop_device_caches();

}  // namespace collectives
