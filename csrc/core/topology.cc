#include "core/topology.h"

#include <cstddef>

namespace collectives {

std::vector<std::vector<int>> Topology::by_host() const {
  std::vector<std::vector<int>> hosts;
  std::vector<std::size_t> place;  // by index of a host: 1 + its place in `hosts`, 0 where it has none yet
  for (int r = 0; r < size; ++r) {
    const auto index = static_cast<std::size_t>(host[static_cast<std::size_t>(r)]);
    if (index >= place.size()) {
      place.resize(index + 1, 0);
    }
    if (place[index] == 0) {
      hosts.emplace_back();
      place[index] = hosts.size();
    }
    hosts[place[index] - 1].push_back(r);
  }
  return hosts;
}

Topology Topology::of(const std::vector<int>& ranks) const {
  Topology group;
  group.rank = -1;
  group.size = static_cast<int>(ranks.size());
  group.ranks_per_core = ranks_per_core;
  group.cores = cores;
  for (int r = 0; r < group.size; ++r) {
    const auto old = static_cast<std::size_t>(ranks[r]);
    group.rank = ranks[r] == rank ? r : group.rank;
    group.host.push_back(host[old]);
    if (!machine.empty()) {
      group.machine.push_back(machine[old]);
    }
  }
  return group;
}

Topology one_host(int rank, int size) {
  Topology topology;
  topology.rank = rank;
  topology.size = size;
  topology.host.assign(static_cast<std::size_t>(size), 0);
  return topology;
}

}  // namespace collectives
