// The cores of the machines that the ranks of a job are on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/topology.h"
#include "predict/machine.h"

namespace collectives {

inline int hosts_of(const Topology& topology) {
  return 1 + *std::max_element(topology.host.begin(), topology.host.end());
}

class Cores {
 public:
  explicit Cores(const Topology& topology) : machine_(topology.machine.empty() ? topology.host : topology.machine) {
    ranks_.resize(static_cast<std::size_t>(1 + *std::max_element(machine_.begin(), machine_.end())));
    for (const int m : machine_) {
      ++ranks_[static_cast<std::size_t>(m)];
    }
    for (std::size_t m = 0; m < ranks_.size(); ++m) {
      const int known = m < topology.cores.size() ? topology.cores[m] : ranks_[m];
      count_.push_back(std::max(1, std::min(known, ranks_[m])));
      crowded_.push_back(known < ranks_[m]);
    }
  }

  std::size_t machines() const { return count_.size(); }
  std::size_t machine_of(int rank) const { return static_cast<std::size_t>(machine_[static_cast<std::size_t>(rank)]); }
  // As many as can be in use.
  int count(std::size_t machine) const { return count_[machine]; }
  // Whether the machine has more ranks than cores.
  bool crowded(std::size_t machine) const { return crowded_[machine]; }
  // How long takes there what takes so long on a core of its own.
  Picoseconds slowed(std::size_t machine, Picoseconds time) const {
    return crowded_[machine] ? time * kCrowdTenths / 10 : time;
  }

 private:
  std::vector<int> machine_;  // of each rank
  std::vector<int> ranks_;    // by machine
  std::vector<int> count_;
  std::vector<bool> crowded_;
};

}  // namespace collectives
