// Ranks of one process over one mapping, so that ThreadSanitizer, which knows one mapping only, sees both sides of
// every flag.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <vector>

#include "core/domain.h"
#include "core/memory.h"
#include "runtime/communicator.h"

namespace collectives {

struct LocalWorld {
  std::vector<Mapping> segments;
  std::vector<int> doorbells;
  std::vector<std::unique_ptr<Communicator>> ranks;

  LocalWorld(int size, const Limits& limits)
      : LocalWorld(size, limits, size > static_cast<int>(std::thread::hardware_concurrency())) {}

  LocalWorld(int size, const Limits& limits, bool crowded) {
    const SegmentLayout layout(size, limits, 1 << 20, HostMemory::default_arena_bytes(size, limits, 1 << 20));
    std::vector<std::byte*> bases;
    for (int r = 0; r < size; ++r) {
      segments.push_back(find_memory("host").map(-1, layout.total));
      bases.push_back(segments.back().data());
      doorbells.push_back(eventfd(0, EFD_NONBLOCK));
    }
    for (int r = 0; r < size; ++r) {
      auto memory = std::make_shared<HostMemory>(r, limits, layout, find_memory("host"), bases, doorbells,
                                                 std::make_shared<int>(0));
      auto engine = std::make_shared<Engine>(r, std::vector<Peer>(size), dup(doorbells[r]), crowded, memory);
      CommunicatorOptions options;
      options.topology = one_host(r, size);
      options.topology.crowded = crowded;
      options.mapped_transport = "local";
      options.timeout_s = 120;
      ranks.push_back(std::make_unique<Communicator>(engine, memory->world_domain(), options));
    }
  }
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;
  ~LocalWorld() {
    ranks.clear();
    for (const int doorbell : doorbells) {
      close(doorbell);
    }
  }
};

}  // namespace collectives
