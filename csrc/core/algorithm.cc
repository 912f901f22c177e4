#include "core/algorithm.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <tuple>

#include "core/error.h"

namespace collectives {
namespace {

// What static constructors have handed in so far, in the order of linking. `read` turns true when positions have been
// given out; from then on they must not shift.
struct Registered {
  std::vector<Algorithm> list;
  bool read = false;
};

Registered& registered() {
  static Registered all;  // function-local: constructed before the first registration, whatever the order of files
  return all;
}

[[noreturn]] void refuse(const Algorithm& algorithm, const char* why) {
  const std::string name_text(algorithm.name);
  const std::string collective_text(name(algorithm.collective));
  std::fprintf(stderr, "collectives: cannot register algorithm '%s' of %s: %s\n", name_text.c_str(),
               collective_text.c_str(), why);
  std::abort();
}

std::vector<Algorithm> sorted() {
  Registered& all = registered();
  all.read = true;
  std::vector<Algorithm> list = all.list;
  std::sort(list.begin(), list.end(), [](const Algorithm& a, const Algorithm& b) {
    return std::tie(a.collective, a.name) < std::tie(b.collective, b.name);
  });
  return list;
}

// What every algorithm comes down to when there is nobody to talk to.
Schedule alone(const Problem& problem) {
  ScheduleBuilder b;
  if (problem.collective == Collective::kBroadcast) {
    b.copy(input(0), {output(0)}, problem.bytes());
  } else if (problem.collective != Collective::kBarrier) {
    b.reduce({input(0)}, {output(0)}, problem.bytes(), true);
  }
  return b.build();
}

}  // namespace

LinkCost CostModel::slowest(const Topology& topology) const {
  if (topology.all_mapped()) {
    return mapped;
  }
  std::size_t sharing = 1;
  for (const auto& ranks : topology.by_host()) {
    sharing = std::max(sharing, ranks.size());
  }
  return {message.latency_us, message.bytes_per_us / static_cast<double>(sharing)};
}

RegisterAlgorithm::RegisterAlgorithm(const Algorithm& algorithm) {
  Registered& all = registered();
  if (all.read) {
    refuse(algorithm, "the registry has been read already, and the numbers of algorithms must not change");
  }
  for (const Algorithm& other : all.list) {
    if (other.collective == algorithm.collective && other.name == algorithm.name) {
      refuse(algorithm, "there is one of that name already");
    }
  }
  all.list.push_back(algorithm);
}

const std::vector<Algorithm>& algorithms() {
  static const std::vector<Algorithm> list = sorted();
  return list;
}

const Algorithm* find_algorithm(Collective collective, std::string_view name) {
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective == collective && algorithm.name == name) {
      return &algorithm;
    }
  }
  return nullptr;
}

int algorithm_id(const Algorithm& algorithm) {
  int id = 0;
  for (const Algorithm& other : algorithms()) {
    ++id;
    // By name, not by address, since a caller may hold a copy.
    if (other.collective == algorithm.collective && other.name == algorithm.name) {
      return id;
    }
  }
  throw ArgumentError("the algorithm '" + std::string(algorithm.name) + "' is not registered");
}

Schedule build_schedule(std::string_view algorithm, const Problem& problem, const Topology& topology,
                        const Limits& limits) {
  const std::string collective_text(name(problem.collective));
  const Algorithm* found = find_algorithm(problem.collective, algorithm);
  if (found == nullptr) {
    std::string names;
    for (const Algorithm& other : algorithms()) {
      if (other.collective == problem.collective) {
        names += (names.empty() ? "" : ", ") + std::string(other.name);
      }
    }
    throw ArgumentError(collective_text + " has no algorithm '" + std::string(algorithm) + "'; it has " +
                        (names.empty() ? "none" : names));
  }
  const std::string_view reason = found->unsupported(problem, topology);
  if (!reason.empty()) {
    throw ArgumentError("the algorithm '" + std::string(algorithm) + "' of " + collective_text +
                        " cannot be used here: " + std::string(reason));
  }
  return topology.size == 1 ? alone(problem) : found->build(problem, topology, limits);
}

}  // namespace collectives
