// Which ranks form a group and how they are placed.
#pragma once

#include <cstdint>
#include <vector>

namespace collectives {

struct Topology {
  int rank = 0;
  int size = 1;
  // host[r]: index of the memory domain of rank r. Ranks with the same index can map each other's memory; this was
  // proven by handing over a descriptor, never by comparing names.
  std::vector<int> host;
  // How many ranks (of the world, for a group too) share a core, rounded up, where that are most.
  int ranks_per_core = 1;
  // machine[r]: ranks with the same index run on the same cores, whether or not they share memory. Empty: as `host`.
  std::vector<int> machine = {};
  // cores[m]: how many cores the ranks of machine m may use. Empty: one for each rank.
  std::vector<int> cores = {};

  // Ranks that wait for each other take turns on the cores, and every meeting costs changes of threads.
  bool crowded() const { return ranks_per_core > 1; }

  bool mapped(int a, int b) const { return host[a] == host[b]; }

  // True when every rank can map every other's memory.
  bool all_mapped() const {
    for (const int h : host) {
      if (h != host[0]) {
        return false;
      }
    }
    return true;
  }

  // That of a group of these ranks, which keeps the indices of hosts and machines. Its rank is -1 where this one is
  // none of them.
  Topology of(const std::vector<int>& ranks) const;

  // The ranks of each host, in rank order, hosts in order of their lowest rank.
  std::vector<std::vector<int>> by_host() const;
};

// A topology of `size` ranks on one host.
Topology one_host(int rank, int size);

}  // namespace collectives
