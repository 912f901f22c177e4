// What the simulation of schedules knows of the machines and the network of a job.
//
// All numbers are integers and the same on all ranks, so all find the same times and choose the same algorithm. Nothing
// is measured inside a job: choices, and with them the bits of results, stay the same from run to run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/network.h"
#include "core/topology.h"

namespace collectives {

// Picoseconds: at 400 Gbit/s a byte takes 20.
using Picoseconds = std::int64_t;
inline constexpr Picoseconds kNanosecond = 1000;
inline constexpr Picoseconds kMicrosecond = 1000 * kNanosecond;
inline constexpr Picoseconds kNever = std::numeric_limits<Picoseconds>::max();

// What is longer counts as 53 days, so that sums of a few stay numbers.
constexpr Picoseconds bounded(double time) {
  return static_cast<Picoseconds>(std::min(time, static_cast<double>(kNever / 2)));
}

// What a rank's thread does for data, where it has a core to itself. Fitted to what was measured on the machine of
// docs/performance.md between network namespaces; ratios matter, since the same costs are part of all candidates.
struct ProcessorCosts {
  Picoseconds send_message = 5 * kMicrosecond;     // a system call that sends
  Picoseconds receive_message = 4 * kMicrosecond;  // waking up and a system call that receives
  Picoseconds send_byte = 100;                     // through the kernel
  Picoseconds receive_byte = 160;
  Picoseconds mapped_message = 600 * kNanosecond;  // between ranks that share memory: through cells, copied in and out
  Picoseconds mapped_byte = 55;
  Picoseconds copy_byte = 40;
  Picoseconds reduce_byte = 20;  // of each source
  Picoseconds step = 30 * kNanosecond;
  // A rank that waited goes on. With more ranks than cores that is a change of threads.
  Picoseconds resume = 200 * kNanosecond;
  Picoseconds resume_crowded = 5500 * kNanosecond;
};

// With more ranks than cores all of the above but the last takes as much longer: a thread finds in the caches what
// others have left there, and the kernel works for the messages of the others on the same cores. In tenths.
inline constexpr Picoseconds kCrowdTenths = 25;

// What a message takes on the wire: a packet of Ethernet carries 1448 bytes behind 66 of headers, and even a message of
// no bytes is a frame with its own header.
constexpr std::int64_t frame_bytes(std::int64_t bytes) { return bytes + bytes / 22 + 80; }

// The time of a byte on the wire.
inline Picoseconds wire_byte(const Network& network) {
  constexpr std::int64_t kPicosecondsPerMs = 1'000'000'000;
  return std::max<Picoseconds>(1, kPicosecondsPerMs / std::max<std::int64_t>(1, network.bytes_per_ms));
}

}  // namespace collectives
