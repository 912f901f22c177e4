#include "core/topology.h"

#include <cstddef>

namespace collectives {

std::vector<std::vector<int>> Topology::by_host() const {
  std::vector<std::vector<int>> hosts;
  std::vector<int> keys;  // keys[i]: the host index of hosts[i]; few hosts, so a search beats a map
  for (int r = 0; r < size; ++r) {
    std::size_t i = 0;
    while (i < keys.size() && keys[i] != host[r]) {
      ++i;
    }
    if (i == keys.size()) {
      keys.push_back(host[r]);
      hosts.emplace_back();
    }
    hosts[i].push_back(r);
  }
  return hosts;
}

Topology one_host(int rank, int size) { return {rank, size, std::vector<int>(static_cast<std::size_t>(size), 0)}; }

}  // namespace collectives
