// recursive_doubling all-reduce: hosts exchange all they have with ever more distant hosts.
//
// The lowest rank of every host is its leader: it reduces the buffers of its host and at the end sends the result back.
// Of h hosts the first 2^k take part, k as great as can be. Each host behind them sends its sum to the one 2^k before,
// and gets the result. In round i the leaders of hosts that differ in bit i exchange their sums, and each adds what it
// gets: log2(h) messages come one after the other, S bytes each, of which only one at a time passes a port: the choice
// for short buffers. Both add in the order of hosts, so all have the same bits.
//
// A sum is sent while the next one comes, so each has its own scratch memory.
//
// Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.

#include <algorithm>
#include <bit>
#include <vector>

#include "schedule/placement.h"

namespace collectives {
namespace {

std::string_view unsupported(const Problem& /*problem*/, const Topology& topology) { return needs_hosts(topology); }

double cost(const Problem& problem, const Topology& topology, const CostModel& model) {
  const Placement placement(topology);
  const auto hosts = static_cast<unsigned>(placement.hosts());
  const auto bytes = static_cast<double>(problem.bytes());
  // A number of hosts that is no power of two takes a message before all rounds and one behind them.
  const int rounds = std::bit_width(hosts) - 1 + (std::has_single_bit(hosts) ? 0 : 2);
  return 2 * model.mapped.latency_us + 2.0 * placement.most() * bytes / model.mapped.bytes_per_us +
         rounds * (model.message.latency_us + bytes / model.message.bytes_per_us);
}

Schedule build(const Problem& problem, const Topology& topology, const Limits& limits) {
  if (problem.count == 0) {
    return build_schedule("one_shot", problem, topology, limits);
  }
  const Placement placement(topology);
  const std::vector<int> leaders = placement.leaders(placement.ranks(0)[0]);
  const int host = placement.host();
  const int doubling = static_cast<int>(std::bit_floor(static_cast<unsigned>(placement.hosts())));
  const int leader = leaders[static_cast<std::size_t>(host)];
  const std::int64_t bytes = problem.bytes();
  ScheduleBuilder b;
  if (topology.rank != leader) {
    b.send(leader, input(0), bytes).receive(leader, output(0), bytes).await();
    return b.build_messages();
  }
  // Who sends to this leader before the rounds, and gets the result from it.
  std::vector<int> below;
  for (const int r : placement.local()) {
    if (r != leader) {
      below.push_back(r);
    }
  }
  if (host + doubling < placement.hosts()) {
    below.push_back(leaders[static_cast<std::size_t>(host + doubling)]);
  }
  const bool takes_part = host < doubling;
  const auto room = [&] { return scratch_at(b.scratch(bytes)); };
  Operand sum = input(0);
  if (!below.empty()) {
    std::vector<Operand> sources{input(0)};
    for (const int r : below) {
      sources.push_back(room());
      b.receive(r, sources.back(), bytes);
    }
    sum = room();
    b.await().reduce(sources, {sum}, bytes, false);
  } else if (takes_part) {
    sum = room();  // in place, the result would come while the input leaves
    b.copy(input(0), {sum}, bytes);
  }
  if (takes_part) {
    for (int bit = 1; bit < doubling; bit *= 2) {
      const bool last = 2 * bit == doubling;
      const int partner = leaders[static_cast<std::size_t>(host ^ bit)];
      const Operand next = last ? output(0) : room();
      b.send(partner, sum, bytes);
      b.receive_reduce(partner, sum, next, bytes, last, (host & bit) == 0);
      b.await();
      sum = next;
    }
  } else {
    const int other = leaders[static_cast<std::size_t>(host - doubling)];
    b.send(other, sum, bytes).receive(other, output(0), bytes).await();
  }
  for (const int r : below) {
    b.send(r, output(0), bytes);
  }
  return b.build_messages();
}

const RegisterAlgorithm registration({"recursive_doubling", Collective::kAllReduce,
                                      "Leaders of hosts exchange their sums with ever more distant ones.",
                                      "Thakur, Rabenseifner and Gropp 2005", Determinism::kFixed, unsupported, cost,
                                      build});

}  // namespace
}  // namespace collectives
