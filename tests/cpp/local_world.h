// Ranks of one process over one mapping, so that ThreadSanitizer, which knows one mapping only, sees both sides of
// every flag. Ranks can also be made as if they were on several hosts: then they have links over socket pairs.
#pragma once

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "engine/communicator.h"
#include "memory/domain.h"
#include "memory/memory.h"
#include "predict/selector.h"

namespace collectives {

struct LocalWorld {
  std::vector<Mapping> segments;
  std::vector<int> doorbells;
  std::vector<std::unique_ptr<Communicator>> ranks;

  LocalWorld(int size, const Limits& limits)
      : LocalWorld(size, limits, size > static_cast<int>(std::thread::hardware_concurrency())) {}

  LocalWorld(int size, const Limits& limits, bool crowded)
      : LocalWorld(limits, crowded, std::vector<int>(static_cast<std::size_t>(size), 0)) {}

  // host[r]: which host rank r is on. overrides: of the choice of algorithms, by rank; none where that is empty.
  LocalWorld(const Limits& limits, bool crowded, const std::vector<int>& host,
             const std::vector<std::vector<Override>>& overrides = {}) {
    const int size = static_cast<int>(host.size());
    const SegmentLayout layout(size, limits, 1 << 20, HostMemory::default_arena_bytes(size, limits, 1 << 20));
    std::vector<std::vector<Peer>> peers(size);
    for (int r = 0; r < size; ++r) {
      segments.push_back(find_memory("host").map(-1, layout.total));
      doorbells.push_back(eventfd(0, EFD_NONBLOCK));
      peers[r].resize(size);
    }
    for (int r = 0; r < size; ++r) {
      for (int s = 0; s < size; ++s) {
        if (s != r) {
          peers[r][s].rank = s;
        }
        if (s < r && host[r] != host[s]) {
          connect(peers, r, s);
        }
      }
    }
    for (int r = 0; r < size; ++r) {
      std::vector<std::byte*> bases(size, nullptr);
      int mapped = 0;
      for (int s = 0; s < size; ++s) {
        if (host[s] == host[r]) {
          bases[s] = segments[s].data();
          ++mapped;
        }
      }
      std::shared_ptr<HostMemory> memory;
      if (mapped > 1 || size == 1) {
        memory = std::make_shared<HostMemory>(r, limits, layout, find_memory("host"), bases, doorbells,
                                              std::make_shared<int>(0));
      }
      auto engine = std::make_shared<Engine>(r, std::move(peers[r]), dup(doorbells[r]), crowded ? 2 : 1, memory);
      CommunicatorOptions options;
      options.topology = one_host(r, size);
      options.topology.host = host;
      options.topology.ranks_per_core = crowded ? 2 : 1;
      options.within = &find_transport(Reach::kProcess);
      options.between = &find_transport(Reach::kNetwork);
      options.timeout_s = 120;
      if (!overrides.empty()) {
        options.overrides = overrides[r];
      }
      ranks.push_back(
          std::make_unique<Communicator>(engine, memory != nullptr ? memory->world_domain() : nullptr, options));
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

 private:
  static void connect(std::vector<std::vector<Peer>>& peers, int r, int s) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) {
      throw std::runtime_error("socketpair failed");
    }
    peers[r][s].link = find_transport(Reach::kNetwork).connect(fds[0], s);
    peers[s][r].link = find_transport(Reach::kNetwork).connect(fds[1], r);
  }
};

// Makes the call on each of two ranks, stepped in turn by this thread, until both are done.
inline void run_both(const LocalWorld& world, const std::vector<Call>& calls) {
  std::shared_ptr<Work> works[2];
  bool done[2];
  for (int r = 0; r < 2; ++r) {
    done[r] = world.ranks[r]->run(calls[r], works[r]);
  }
  while (!done[0] || !done[1]) {
    for (int r = 0; r < 2; ++r) {
      if (!done[r] && world.ranks[r]->wait(*works[r], 0)) {
        world.ranks[r]->finish_run(std::move(works[r]));
        done[r] = true;
      }
    }
  }
}

}  // namespace collectives
