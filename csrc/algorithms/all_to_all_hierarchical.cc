// hierarchical all-to-all: one message from each host to each other one.
//
// The lowest rank of every host is its leader: the others send it their whole input. It packs what its host has for
// each other host into one message, parts for one rank side by side, and sends it to the leader there. From what comes
// it puts the output of each rank of its host together, and sends it there. So h-1 messages leave each of h hosts in
// place of one for each pair of ranks, at the price of two more messages inside a host and of some copies: the choice
// for short parts. A leader has to know the lengths of all parts of its host, so that they have one length, or are
// known to all.
//
// Source: the two-level all-to-all of MPI libraries (Traeff and Rougier 2014).

#include <algorithm>
#include <vector>

#include "schedule/exchange.h"
#include "schedule/placement.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& problem, const Topology& topology) {
  return problem.own != nullptr ? "a leader does not know the lengths of the parts of other ranks"
                                : needs_hosts(topology);
}

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const Placement placement(topology);
  const double h = placement.hosts();
  // Of all ranks of a host.
  const double bytes = placement.most() * static_cast<double>(problem.bytes()) / topology.size;
  return 2 * model.mapped.latency_us + 2 * bytes / model.mapped.bytes_per_us + 2 * bytes / model.copy_bytes_per_us +
         (1 + 0.3 * (h - 2)) * model.message.latency_us + (h - 1) / h * bytes / model.message.bytes_per_us;
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& /*limits*/) {
  const Placement placement(topology);
  const int n = topology.size;
  const int me = topology.rank;
  const int leader = placement.local()[0];
  const std::int64_t gives = problem.input_bytes(me, n);
  const std::int64_t gets = problem.output_bytes(me, n);
  ScheduleBuilder b;
  if (me != leader) {
    b.send(leader, input(0), gives).receive(leader, output(0), gets).await();
    return b.build_messages();
  }
  const std::vector<int>& local = placement.local();
  // Where the input of a rank of this host is.
  std::vector<Operand> rows(static_cast<std::size_t>(n));
  for (const int r : local) {
    const std::int64_t bytes = problem.input_bytes(r, n);
    rows[static_cast<std::size_t>(r)] = r == me ? input(0) : scratch_at(b.scratch(bytes));
    if (r != me) {
      b.receive(r, rows[static_cast<std::size_t>(r)], bytes);
    }
  }
  if (local.size() > 1) {
    b.await();
  }
  const auto part_of_row = [&](int from, int to) {
    Operand part = rows[static_cast<std::size_t>(from)];
    part.offset += problem.input_offset(from, to, n);
    return part;
  };
  // Where the message of another host is, and in it the part of a rank there for one here.
  std::vector<std::vector<std::int64_t>> came(static_cast<std::size_t>(n), std::vector<std::int64_t>(local.size()));
  for (int i = 1; i < placement.hosts(); ++i) {
    const std::vector<int>& others = placement.ranks((placement.host() + i) % placement.hosts());
    std::int64_t bytes = 0;
    for (const int to : others) {
      for (const int from : local) {
        bytes += problem.part_bytes(from, to, n);
      }
    }
    const std::int64_t packed = b.scratch(bytes);
    std::int64_t at = packed;
    for (const int to : others) {
      for (const int from : local) {
        b.copy(part_of_row(from, to), {scratch_at(at)}, problem.part_bytes(from, to, n));
        at += problem.part_bytes(from, to, n);
      }
    }
    b.send(others[0], scratch_at(packed), bytes);
    bytes = 0;
    for (std::size_t to = 0; to < local.size(); ++to) {
      for (const int from : others) {
        came[static_cast<std::size_t>(from)][to] = bytes;
        bytes += problem.part_bytes(from, local[to], n);
      }
    }
    const std::int64_t unpacked = b.scratch(bytes);
    b.receive(others[0], scratch_at(unpacked), bytes);
    for (const int from : others) {
      for (std::int64_t& place : came[static_cast<std::size_t>(from)]) {
        place += unpacked;
      }
    }
  }
  b.await();
  for (std::size_t i = 0; i < local.size(); ++i) {
    const int to = local[i];
    Operand whole = to == me ? output(0) : scratch_at(b.scratch(problem.output_bytes(to, n)));
    for (int from = 0; from < n; ++from) {
      Operand place = whole;
      place.offset += problem.output_offset(from, to, n);
      const bool here = placement.host_of(from) == placement.host();
      b.copy(here ? part_of_row(from, to) : scratch_at(came[static_cast<std::size_t>(from)][i]), {place},
             problem.part_bytes(from, to, n));
    }
    if (to != me) {
      b.send(to, whole, problem.output_bytes(to, n));
    }
  }
  return b.build_messages();
}

const RegisterAlgorithm registration({"hierarchical", Collective::kAllToAll,
                                      "Leaders of hosts exchange what their hosts have for each other.",
                                      "Traeff and Rougier 2014", Determinism::kCanonical, unsupported, cost, build});

}  // namespace
}  // namespace collectives
