// Collectives whose ranks are arrays in the memory of several devices, all driven by one call of one process.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "device/events.h"
#include "schedule/algorithm.h"

namespace collectives {

// The arrays of one rank, and the stream in whose order they are used. An output whose data is nullptr gets memory for
// as long as the collective runs.
struct DeviceRank {
  DeviceStream stream;
  std::vector<Span> input;
  std::vector<Span> output;
};

// A copy on the device of a rank, after all steps of the schedule.
struct DeviceCopy {
  int rank = 0;
  const void* source = nullptr;
  void* destination = nullptr;
  std::int64_t bytes = 0;
};

// The size of the chunks in which schedules move data through bounce buffers and messages. Each costs several kernels
// and events.
inline constexpr std::int64_t kDeviceChunkBytes = 4 << 20;

// Puts the schedules of all ranks into streams, and waits for no device: the result is there when each rank's stream
// has done what it holds on return. The bits are those of the same algorithm in host memory.
//
// Where all devices can access each other's memory, ranks read and write the arrays of others (MemoryKind::kSymmetric)
// if the algorithm can; otherwise data goes through bounce buffers and copies.
//
// Throws ArgumentError where the algorithm does not exist or cannot be used, and CollectivesError (kBackend) where a
// device fails or a CUDA graph is being recorded: the bounce buffers cannot belong to a graph.
void run_device_collective(const Problem& problem, const std::string& algorithm, std::span<const DeviceRank> ranks,
                           std::span<const DeviceCopy> copies = {}, std::int64_t chunk_bytes = kDeviceChunkBytes);

// Releases memory, streams and events that are kept for later calls. Waits for the devices.
void drop_device_caches();

}  // namespace collectives
