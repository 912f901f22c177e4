// The network between the hosts of a job, as all ranks know it alike.
#pragma once

#include <cstdint>

namespace collectives {

// Every host has one port, which its ranks share, with this rate in each direction.
struct Network {
  std::int64_t bytes_per_ms = 1'250'000;  // 10 Gbit/s
  std::int64_t latency_ns = 20'000;       // from one host to another, without the work of the two processors
  // What a port lets through at once after a pause, as the token buckets do with which clouds limit rates.
  std::int64_t burst_bytes = 0;
};

}  // namespace collectives
