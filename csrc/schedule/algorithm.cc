#include "schedule/algorithm.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace collectives {
namespace {

// The algorithms that static constructors have registered so far, in the order of linking. Once `read` is true, callers
// know positions in the sorted list, so these must not shift any more.
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

// What every algorithm comes down to in a group of one.
Schedule alone(const Problem& problem) {
  ScheduleBuilder b;
  if (problem.collective == Collective::kExscan) {
    return b.build();
  }
  if (reduces(problem.collective)) {
    b.reduce({input(0)}, {output(0)}, problem.bytes(), true);
  } else if (problem.collective != Collective::kBarrier) {
    b.copy(input(0), {output(0)}, problem.bytes());
  }
  return b.build();
}

}  // namespace

std::int64_t Problem::input_bytes(int rank, int size) const {
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kGather:
      return counts[rank] * element();
    case Collective::kScatter:
      return rank == root ? bytes() : 0;
    case Collective::kAllToAll:
      if (own != nullptr) {
        return own->totals[rank] * element();
      }
      if (has_one_length()) {
        return size * counts[0] * element();
      }
      return std::accumulate(counts.begin() + std::ptrdiff_t{rank} * size,
                             counts.begin() + std::ptrdiff_t{rank + 1} * size, std::int64_t{0}) *
             element();
    case Collective::kBarrier:
      return 0;
    default:
      return bytes();
  }
}

std::int64_t Problem::output_bytes(int rank, int size) const {
  switch (collective) {
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return counts[rank] * element();
    case Collective::kGather:
      return rank == root ? bytes() : 0;
    case Collective::kAllToAll:
      return output_offset(size, rank, size);
    default:
      return collective == Collective::kAllGather ? bytes() : input_bytes(rank, size);
  }
}

std::int64_t Problem::part_bytes(int from, int to, int size) const {
  switch (collective) {
    case Collective::kAllGather:
      return counts[from] * element();
    case Collective::kGather:
      return to == root ? counts[from] * element() : 0;
    case Collective::kReduceScatter:
      return counts[to] * element();
    case Collective::kScatter:
      return from == root ? counts[to] * element() : 0;
    default:
      if (own != nullptr) {
        if (from != own->rank && to != own->rank) {
          throw std::logic_error("the length of a part between two other ranks is not known");
        }
        return (from == own->rank ? own->gives[to] : own->gets[from]) * element();
      }
      return counts[has_one_length() ? 0 : std::ptrdiff_t{from} * size + to] * element();
  }
}

std::int64_t Problem::input_offset(int from, int to, int size) const {
  if (collective == Collective::kAllGather || collective == Collective::kGather) {
    return 0;  // all of it goes to every rank
  }
  if (has_one_length()) {
    return to * counts[0] * element();
  }
  if (own != nullptr && from != own->rank) {
    return own->begins[from] * element();
  }
  std::int64_t offset = 0;
  for (int r = 0; r < to; ++r) {
    offset += part_bytes(from, r, size);
  }
  return offset;
}

std::int64_t Problem::output_offset(int from, int to, int size) const {
  if (collective == Collective::kReduceScatter || collective == Collective::kScatter) {
    return 0;
  }
  if (has_one_length()) {
    return from * counts[0] * element();
  }
  std::int64_t offset = 0;
  for (int r = 0; r < from; ++r) {
    offset += part_bytes(r, to, size);
  }
  return offset;
}

std::int64_t Problem::readers_before(int from, int to, int size) const {
  if (has_one_length()) {
    return counts[0] > 0 ? to - (from < to ? 1 : 0) : 0;
  }
  if (own != nullptr && from != own->rank) {
    return own->before[from];
  }
  if (collective == Collective::kAllGather) {
    return counts[from] > 0 ? to - (from < to ? 1 : 0) : 0;
  }
  if (collective == Collective::kGather) {
    return from != root && root < to && counts[from] > 0 ? 1 : 0;
  }
  std::int64_t before = 0;
  for (int r = 0; r < to; ++r) {
    before += r != from && part_bytes(from, r, size) > 0 ? 1 : 0;
  }
  return before;
}

bool Problem::even() const {
  if (own != nullptr) {
    return own->even_but_for_empty();
  }
  std::int64_t length = 0;
  return std::all_of(counts.begin(), counts.end(), [&](std::int64_t c) {
    length = length == 0 ? c : length;
    return c == 0 || c == length;
  });
}

Problem Problem::as_known_to(int rank, int size) const {
  Problem result = *this;
  if (collective == Collective::kAllToAll && own == nullptr && counts.size() > 1) {
    auto known = std::make_shared<OwnParts>(OwnParts::of(rank, size, counts));
    result.counts.clear();
    if (known->even()) {
      result.counts.push_back(known->all.longest);
    } else {
      result.own = std::move(known);
    }
  }
  return result;
}

// Of ranks that share cores: what a change of threads takes, a look at a flag of another rank, and the bytes that a
// core moves for all its ranks.
constexpr double kTurnUs = 0.9;
constexpr double kLookUs = 0.28333;
constexpr double kCoreBytesPerUs = 15000;

CostModel CostModel::of(const Topology& topology, LinkCost mapped, LinkCost message) {
  CostModel model;
  model.mapped = mapped;
  model.message = message;
  if (topology.crowded()) {
    // As measured with 4, 8, 16 and 32 ranks on 2 cores (docs/lab/crowds.md).
    std::size_t ranks = 1;
    for (const auto& of_host : topology.by_host()) {
      ranks = std::max(ranks, of_host.size());
    }
    // In a meeting every rank has a turn on its core, in which it looks at all others.
    const auto others = static_cast<double>(ranks - 1);
    const double turns =
        std::min(static_cast<double>(topology.ranks_per_core), std::max(2.0, static_cast<double>(ranks)));
    model.mapped = {turns * (kTurnUs + kLookUs * others), kCoreBytesPerUs / turns};
    // Ranks of one core read lines that one of them has fetched.
    model.shared_bytes_per_us = 2800;
    model.swapped_bytes_per_us = model.shared_bytes_per_us;  // two ranks on one core have one cache
  }
  return model;
}

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

std::uint32_t algorithms_digest() {
  std::uint32_t hash = 2166136261U;  // FNV-1a
  const auto add = [&](std::string_view text) {
    for (const char c : text) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
    }
    hash *= 16777619U;
  };
  for (const Algorithm& algorithm : algorithms()) {
    add(name(algorithm.collective));
    add(algorithm.name);
  }
  return hash;
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
