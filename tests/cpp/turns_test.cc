// What is different where ranks outnumber cores: whom a rank that waits in vain yields to, how long chunks are, which
// algorithm is the cheapest, and what a rank polls while it sleeps.
//
// One thread plays one rank of three, whose peers have not come, and says for them on which cores they are. How long
// the rank looks for them is seen from the time that its fastest round takes.

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "local_world.h"

namespace {

using namespace collectives;

int g_failures = 0;

void check(bool good, const std::string& what) {
  if (!good) {
    std::fprintf(stderr, "FAILED: %s\n", what.c_str());
    ++g_failures;
  }
}

// The shortest of many: whatever else runs here can only make one longer.
double fastest_round_ns(Communicator& rank) {
  double fastest = 1e12;
  for (int i = 0; i < 2000; ++i) {
    const std::lock_guard guard(rank.engine()->lock());
    const auto begin = std::chrono::steady_clock::now();
    rank.drive();
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
    fastest = std::min(fastest, time.count());
  }
  return fastest;
}

// The rank `me` waits for rank `awaited` and maybe for rank `other`.
void look(Collective collective, std::int64_t elements, int me, int awaited, int other) {
  const LocalWorld world(Limits(), true, {0, 0, 0});
  Communicator& rank = *world.ranks[me];
  const Domain& domain = *rank.domain();
  std::vector<float> values[3];
  Call calls[3];
  std::shared_ptr<Work> works[3];
  for (int r = 0; r < 3; ++r) {
    values[r].assign(elements, static_cast<float>(r + 1));
    calls[r].collective = collective;
    calls[r].algorithm = algorithm_id(*find_algorithm(collective, "one_shot"));
    calls[r].input = {{reinterpret_cast<std::byte*>(values[r].data()), elements * 4}};
    calls[r].output = calls[r].input;
  }
  check(!rank.run(calls[me], works[me]), "the rank does not wait");
  const std::uint32_t core = domain.control(me).core.load(std::memory_order_relaxed);
  check(core == static_cast<std::uint32_t>(sched_getcpu() + 1), "the rank does not say on which core it is");
  const auto round_ns = [&](bool awaited_is_here, bool other_is_here) {
    domain.control(awaited).core.store(core + (awaited_is_here ? 0 : 1), std::memory_order_relaxed);
    domain.control(other).core.store(core + (other_is_here ? 0 : 1), std::memory_order_relaxed);
    return fastest_round_ns(rank);
  };
  const double elsewhere = round_ns(false, false);
  const double awaited_here = round_ns(true, false);
  const double other_here = round_ns(false, true);
  std::printf("rank %d: others elsewhere %.0f ns, rank %d here %.0f ns, rank %d here %.0f ns\n", me, elsewhere, awaited,
              awaited_here, other, other_here);
  check(elsewhere > 1.5 * awaited_here, "the rank looks as long for one on the same core");
  check(elsewhere > 1.5 * other_here, "the rank keeps the core from one that may have something to do");
  for (int r = 0; r < 3; ++r) {
    if (r != me) {
      world.ranks[r]->run(calls[r], works[r]);
    }
  }
  for (bool done = false; !done;) {
    done = true;
    for (int r = 0; r < 3; ++r) {
      done = (works[r] == nullptr || world.ranks[r]->wait(*works[r], 0)) && done;
    }
  }
  const float result = collective == Collective::kAllReduce ? 6.0F : 1.0F;
  for (const std::vector<float>& of_rank : values) {
    check(of_rank.front() == result && of_rank.back() == result, "the result is wrong");
  }
}

// Slots, and chunks of a crowd, grow with the number of ranks; chunks of others do not.
void count_long_chunks() {
  const auto expect = [](int size, int ranks_per_core, std::int64_t slot_bytes, std::int64_t chunks) {
    Problem problem;
    problem.count = (16 << 20) / problem.element();
    Topology topology = one_host(0, size);
    topology.ranks_per_core = ranks_per_core;
    const Limits limits = Limits::of(size);
    const std::int64_t found = build_schedule("two_shot", problem, topology, limits).chunks;
    check(limits.slot_bytes == slot_bytes && found == chunks,
          std::to_string(size) + " ranks, " + std::to_string(ranks_per_core) + " on a core, have slots of " +
              std::to_string(limits.slot_bytes) + " bytes, and 16 MiB go in " + std::to_string(found) + " chunks");
  };
  expect(2, 1, 512 << 10, 32);
  expect(16, 8, 512 << 10, 32);
  expect(32, 16, 1 << 20, 16);
  expect(32, 1, 1 << 20, 32);
  expect(64, 32, 2 << 20, 8);
  expect(200, 100, 2 << 20, 8);
}

// The more ranks share a core, the dearer is a meeting of all of them, so what meets once pays up to more bytes.
void compare_costs() {
  const auto cheapest = [](int size, int ranks_per_core, std::int64_t bytes) {
    Problem problem;
    problem.count = bytes / problem.element();
    Topology topology = one_host(0, size);
    topology.ranks_per_core = ranks_per_core;
    const CostModel model = CostModel::of(topology, {0.1, 20000}, {10, 5000});
    const auto cost = [&](const char* name) {
      return find_algorithm(Collective::kAllReduce, name)->cost(problem, topology, model);
    };
    return std::string(cost("one_shot") < cost("two_shot") ? "one_shot" : "two_shot");
  };
  const auto expect = [&](int size, int ranks_per_core, std::int64_t bytes, const std::string& wanted) {
    const std::string found = cheapest(size, ranks_per_core, bytes);
    check(found == wanted, std::to_string(bytes) + " bytes of " + std::to_string(size) + " ranks, " +
                               std::to_string(ranks_per_core) + " on a core: " + found + " is the cheapest");
  };
  expect(4, 2, 4 << 10, "one_shot");
  expect(4, 2, 8 << 10, "two_shot");
  for (const int size : {8, 16, 32}) {
    expect(size, size / 2, 8, "one_shot");
    expect(size, size / 2, 1 << 10, "one_shot");
    expect(size, size / 2, 4 << 10, "one_shot");
    expect(size, size / 2, 64 << 10, "two_shot");
  }
}

// The ends of peers are seen by those who look for them, so a rank of a crowd sleeps for what brings it something.
void count_descriptors() {
  const auto polled = [](int ranks_per_core) {
    constexpr int kSize = 32;
    std::vector<Peer> peers(kSize);
    for (int r = 1; r < kSize; ++r) {
      peers[r].rank = r;
      peers[r].control_fd = eventfd(0, EFD_NONBLOCK);
      peers[r].pid_fd = eventfd(0, EFD_NONBLOCK);
    }
    const Engine engine(0, std::move(peers), eventfd(0, EFD_NONBLOCK), ranks_per_core, nullptr);
    const std::vector<pollfd> wakers = engine.wakers();
    return std::count_if(wakers.begin(), wakers.end(), [](const pollfd& p) { return p.fd >= 0; });
  };
  check(polled(1) == 1 + 2 * 31, "a rank with a core of its own polls " + std::to_string(polled(1)) + " descriptors");
  check(polled(16) == 1, "a rank of a crowd polls " + std::to_string(polled(16)) + " descriptors");
}

std::int64_t chunks(DType dtype, std::int64_t bytes, bool crowded) {
  Problem problem;
  problem.dtype = dtype;
  problem.count = bytes / problem.element();
  Topology topology = one_host(1, 3);
  topology.ranks_per_core = crowded ? 2 : 1;
  return build_schedule("two_shot", problem, topology, Limits()).chunks;
}

void count_chunks() {
  for (const DType dtype : {DType::kUInt8, DType::kFloat32, DType::kComplex128}) {
    const auto expect = [&](std::int64_t bytes, std::int64_t in_crowd, std::int64_t else_) {
      const std::int64_t found[] = {chunks(dtype, bytes, true), chunks(dtype, bytes, false)};
      check(found[0] == in_crowd && found[1] == else_,
            std::to_string(bytes) + " bytes go in " + std::to_string(found[0]) + " and " + std::to_string(found[1]) +
                " chunks, not " + std::to_string(in_crowd) + " and " + std::to_string(else_));
    };
    expect(4 << 10, 1, 1);
    expect(64 << 10, 1, 1);
    expect((64 << 10) + 16, 2, 1);
    expect(100'000, 2, 1);
    expect(300'000, 2, 1);
    expect(512 << 10, 2, 1);
    expect(1 << 20, 2, 2);
    expect((1 << 20) + 16, 3, 3);
  }
}

}  // namespace

int main() {
  cpu_set_t here;
  CPU_ZERO(&here);
  CPU_SET(sched_getcpu(), &here);
  check(sched_setaffinity(0, sizeof(here), &here) == 0, "this thread cannot be bound to its core");
  look(Collective::kAllReduce, 64, 0, 1, 2);         // waits for both
  look(Collective::kBroadcast, 256 << 10, 1, 0, 2);  // waits for the root only
  count_chunks();
  count_long_chunks();
  compare_costs();
  count_descriptors();
  return g_failures == 0 ? 0 : 1;
}
