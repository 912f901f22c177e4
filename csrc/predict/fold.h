// Symmetric jobs: one host stands for all.
//
// Where all hosts have the same number of ranks, numbered host by host, many algorithms do the same on each of them:
// what host h sends to host h + d, every host sends to the one d further on, counted around. Then the first host
// receives from host -d what it sends to host d itself, and its ranks alone can be run in virtual time. In other
// algorithms distance is exclusive or rather than a sum, as in recursive doubling.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/topology.h"
#include "schedule/schedule.h"

namespace collectives {

enum class Symmetry : std::uint8_t { kNone, kShift, kExclusiveOr };

// How a host stands for all others: hosts 0 to hosts - 1, with `local` ranks each.
struct Fold {
  Symmetry symmetry = Symmetry::kNone;
  int hosts = 1;
  int local = 1;

  // The rank of which the first host receives what its rank `from` sends to `to`; the receiver is to % local.
  int sender_of(int from, int to) const;
  // Whether the host of rank `to` is, for host `by`, what the host of rank `from` is for the first one.
  bool same(int from, int to, int by) const;
};

// Whether hosts are alike, each on a machine of its own; the symmetry is left open then (kNone).
bool has_equal_hosts(const Topology& topology, Fold& fold);

// The symmetry of the schedules that `build` makes for ranks. It compares those of the first host with those of two
// others. first: gets the schedules of the first host.
Symmetry symmetry_of(const std::function<Schedule(int rank)>& build, const Fold& hosts, std::vector<Schedule>& first);

}  // namespace collectives
