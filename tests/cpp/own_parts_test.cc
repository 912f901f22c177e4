// An all_to_all of which a rank knows its own row and column of the lengths alone: the schedules are those that the
// whole table would give, and what a rank builds and keeps grows with the number of ranks, not with its square.

#include "schedule/own_parts.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "core/topology.h"
#include "replaced_new.h"
#include "schedule/algorithm.h"
#include "schedule/schedule.h"

namespace {

std::int64_t g_allocated = 0;  // bytes, ever

}  // namespace

void before_allocation(std::size_t bytes) { g_allocated += static_cast<std::int64_t>(bytes); }

namespace {

using namespace collectives;

int g_failures = 0;

void check(bool good, const std::string& what) {
  if (!good) {
    std::fprintf(stderr, "FAILED: %s\n", what.c_str());
    ++g_failures;
  }
}

// Some parts are empty, some long.
std::int64_t length(int from, int to) { return (from * 7 + to * 3) % 5 * 9; }

Problem whole_problem(int size) {
  Problem problem;
  problem.collective = Collective::kAllToAll;
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      problem.counts.push_back(length(from, to));
      problem.count += length(from, to);
    }
  }
  return problem;
}

// What OwnParts::of finds in the table, from what ranks would tell each other.
Problem told_problem(int rank, int size) {
  auto own = std::make_shared<OwnParts>();
  own->rank = rank;
  std::vector<std::int64_t> row(static_cast<std::size_t>(size));
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      row[static_cast<std::size_t>(to)] = length(from, to);
    }
    const PartsRow told = PartsRow::of(from, row);
    const PlaceInRow place = PlaceInRow::of(from, rank, row);
    own->gets.push_back(length(from, rank));
    own->gives.push_back(length(rank, from));
    own->begins.push_back(place.begin);
    own->before.push_back(place.before);
    own->totals.push_back(told.total);
    if (from == 0) {
      own->all = told;
    } else {
      own->all.join(told);
    }
  }
  Problem problem;
  problem.collective = Collective::kAllToAll;
  problem.count = own->all.total;
  problem.own = std::move(own);
  return problem;
}

void check_same(int size, const Limits& limits) {
  const Problem whole = whole_problem(size);
  for (int rank = 0; rank < size; ++rank) {
    const Problem told = told_problem(rank, size);
    const std::string where = "rank " + std::to_string(rank) + " of " + std::to_string(size);
    check(*whole.as_known_to(rank, size).own == *told.own, where + ": the table says something else");
    const Topology topology = one_host(rank, size);
    const Schedule a = build_schedule("one_shot", whole, topology, limits);
    const Schedule b = build_schedule("one_shot", told, topology, limits);
    check(to_text(a) == to_text(b), where + ": another schedule than that of the whole table");
  }
}

Problem even_problem_of(std::int64_t part, int size) {
  Problem problem;
  problem.collective = Collective::kAllToAll;
  problem.counts.assign(1, part);
  problem.count = part * size * size;
  return problem;
}

void check_even(int size) {
  Problem whole = even_problem_of(5, size);
  whole.counts.assign(static_cast<std::size_t>(size) * static_cast<std::size_t>(size), 5);
  const Problem known = whole.as_known_to(1, size);
  check(known.own == nullptr && known.counts.size() == 1, "parts of one length are more than one number");
  const Topology topology = one_host(1, size);
  check(to_text(build_schedule("one_shot", whole, topology, Limits())) ==
            to_text(build_schedule("one_shot", known, topology, Limits())),
        "parts of one length have another schedule than that of the whole table");
}

// Bytes that are allocated to learn the lengths and to build the schedule.
std::int64_t allocated(int size, bool mapped) {
  const Problem problem = told_problem(1, size);
  Topology topology = one_host(1, size);
  if (!mapped) {
    for (int r = 0; r < size; ++r) {
      topology.host[static_cast<std::size_t>(r)] = r;
    }
  }
  const std::int64_t before = g_allocated;
  const OwnParts copy = *problem.own;
  const Schedule schedule = build_schedule("one_shot", problem, topology, Limits());
  check(copy == *problem.own && !schedule.steps.empty(), "nothing was built");
  return g_allocated - before;
}

void check_growth(bool mapped) {
  const std::int64_t few = allocated(64, mapped);
  const std::int64_t many = allocated(512, mapped);
  std::printf("%s: %lld bytes for 64 ranks, %lld for 512\n", mapped ? "mapped" : "messages",
              static_cast<long long>(few), static_cast<long long>(many));
  // 8 times as many ranks: 8 times the memory, where a table would take 64 times as much.
  check(many < 16 * few, "8 times as many ranks take " + std::to_string(many / few) + " times the memory");
}

}  // namespace

int main() {
  Limits small;
  small.slot_bytes = 512;
  for (const int size : {2, 3, 5, 8}) {
    check_same(size, Limits());
    check_same(size, small);
    check_even(size);
  }
  check_growth(true);
  check_growth(false);
  std::printf("%d failures\n", g_failures);
  return g_failures == 0 ? 0 : 1;
}
