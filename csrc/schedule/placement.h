// Which ranks share a host, for algorithms in which a message between hosts is worth several inside one.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/topology.h"
#include "schedule/algorithm.h"

namespace collectives {

class Placement {
 public:
  explicit Placement(const Topology& topology);

  int hosts() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks(int host) const { return ranks_[static_cast<std::size_t>(host)]; }
  int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  // Of this rank: its host, the ranks there, and its place among them.
  int host() const { return host_of(rank_); }
  const std::vector<int>& local() const { return ranks(host()); }
  int place() const { return place_; }
  // The rank at this place on the host that many further on, counted around.
  int around(int steps) const {
    return ranks((host() + steps % hosts() + hosts()) % hosts())[static_cast<std::size_t>(place_)];
  }
  int fewest() const { return fewest_; }  // ranks of a host
  int most() const { return most_; }

  // All ranks, host by host, from `first` on, so that a message from each to the next enters and leaves each host once.
  std::vector<int> chain(int first) const;
  // This rank's position in such an order.
  int position(const std::vector<int>& order) const;
  // One rank of each host, in the order of hosts: `root` of its own host, of others the lowest.
  std::vector<int> leaders(int root) const;

 private:
  int rank_;
  std::vector<std::vector<int>> ranks_;  // [host]
  std::vector<int> host_of_;             // [rank]
  int place_ = 0;
  int fewest_ = 0;
  int most_ = 0;
};

// A rank of a binomial tree over positions 0 to size - 1 with the root 0: the parent of v is v without its lowest set
// bit. -1: the root's parent.
struct BinomialPlace {
  int parent = -1;
  std::vector<int> children;  // the one with the most descendants first
};
BinomialPlace binomial_place(int position, int size);

// How long the pieces of `bytes` are that pass `hops` links one after the other. m pieces take (m + hops - 1) times as
// long as one, and each costs something of its own, about as long as a few KiB take on a link. Then the time is least
// where the pieces have sqrt(bytes * cost / hops).
std::int64_t pipeline_segment(std::int64_t bytes, std::int64_t element, int hops, const Limits& limits);

// The same for a part that travels around a ring of many: some segments of it are enough to keep all links busy while
// one is worked on.
std::int64_t part_segment(std::int64_t part, std::int64_t element, const Limits& limits);

// Why an algorithm cannot be used that gains only where messages between hosts cost more than those inside; or empty.
std::string_view needs_hosts(const Topology& topology);

}  // namespace collectives
