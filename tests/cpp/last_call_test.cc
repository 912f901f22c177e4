// One thread that steps two ranks: the call that was run last comes again while another collective is in flight.

#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "local_world.h"

namespace {

using namespace collectives;

Call call_of(Collective collective, std::vector<float>& array) {
  Call call;
  call.collective = collective;
  call.input = {{reinterpret_cast<std::byte*>(array.data()), static_cast<std::int64_t>(array.size() * sizeof(float))}};
  call.output = call.input;
  return call;
}

bool fail(const char* what) {
  std::fprintf(stderr, "FAILED: %s\n", what);
  return false;
}

bool passes() {
  LocalWorld world(Limits(), true, {0, 0});
  std::vector<float> small[2] = {std::vector<float>(4, 0), std::vector<float>(4, 1)};
  std::vector<float> large[2] = {std::vector<float>(4 << 20, 1), std::vector<float>(4 << 20, 2)};
  std::vector<Call> broadcasts;
  std::vector<Call> sums;
  for (int r = 0; r < 2; ++r) {
    broadcasts.push_back(call_of(Collective::kBroadcast, small[r]));
    broadcasts.back().root = 1;
    sums.push_back(call_of(Collective::kAllReduce, large[r]));
  }
  // Of one that had to be waited for the communicator does not know that it is the last; of one that finds the other
  // rank there it does.
  run_both(world, broadcasts);
  small[0].assign(4, 0);
  const std::shared_ptr<Work> root = world.ranks[1]->post(broadcasts[1], false);
  std::shared_ptr<Work> work;
  if (!world.ranks[0]->run(broadcasts[0], work)) {
    return fail("a broadcast whose root was there had to wait");
  }
  while (!world.ranks[1]->wait(*root, 0)) {
  }
  const std::uint64_t before = world.ranks[0]->domain()->control(0).completed.load();
  // Rank 1 has begun both, so rank 0 finds there all that the broadcast needs, but not all of the sum.
  std::shared_ptr<Work> others[2] = {world.ranks[1]->post(sums[1], false), world.ranks[1]->post(broadcasts[1], false)};
  const std::shared_ptr<Work> sum = world.ranks[0]->post(sums[0], false);
  if (sum->finished()) {
    return fail("the sum did not have to wait");
  }
  const bool done = world.ranks[0]->run(broadcasts[0], work);
  if (world.ranks[0]->domain()->control(0).completed.load() != before) {
    return fail("the sum was said to be complete while it was in flight");
  }
  for (bool ended = false; !ended;) {
    ended = world.ranks[0]->wait(*sum, 0) && (done || world.ranks[0]->wait(*work, 0));
    for (const auto& other : others) {
      ended = world.ranks[1]->wait(*other, 0) && ended;
    }
  }
  for (int r = 0; r < 2; ++r) {
    for (const float value : large[r]) {
      if (value != 3) {
        return fail("the sum is wrong");
      }
    }
    if (small[r] != std::vector<float>(4, 1)) {
      return fail("the broadcast is wrong");
    }
  }
  return true;
}

}  // namespace

int main() {
  try {
    return passes() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "FAILED: %s\n", error.what());
    return 1;
  }
}
