// What is different where ranks outnumber cores: whom a rank that waits in vain yields to, and how long chunks are.
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

std::int64_t chunks(DType dtype, std::int64_t bytes, bool crowded) {
  Problem problem;
  problem.dtype = dtype;
  problem.count = bytes / problem.element();
  Topology topology = one_host(1, 3);
  topology.crowded = crowded;
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
  return g_failures == 0 ? 0 : 1;
}
