#include "engine/executor/turns.h"

namespace collectives {
namespace {

// For ranks on other cores: 2.5 us on Zen 4, about what two turns cost.
constexpr int kSpinsForOtherCores = 100;

}  // namespace

// A rank on the same core gets nowhere while this one looks, so where such a rank is awaited, the core goes to it at
// once. Ranks on other cores are likely to be on their way, and giving up the core for them would cost two turns. So
// this rank looks longer where it waits only for those, unless another rank on its own core may have things to do.
Look Turns::await(FlagWords& flags, const Work& work, const Step& step, std::uint32_t next_wait, int spins) const {
  const FlagPlace* const places = work.places.flags + step.waits.begin;
  const std::uint32_t core = host_->publish_core();
  if (core == 0) {
    return flags.await(work, places[next_wait], next_wait == 0, spins);
  }
  int awaited_here = 0;
  for (std::uint32_t i = 0; i < step.waits.count; ++i) {
    const int r = places[i].member;
    const bool again = i > 0 && places[i - 1].member == r;  // two flags of a rank follow each other
    if (host_->runs_on(members_.empty() ? r : members_[r], core)) {
      if (i >= next_wait && flags.await(work, places[i], false, 0) == Look::kNotYet) {
        return Look::kNotYet;
      }
      awaited_here += again ? 0 : 1;
    }
  }
  const bool all_here_awaited = awaited_here == host_->others_on(core);
  return flags.await(work, places[next_wait], next_wait == 0, all_here_awaited ? kSpinsForOtherCores : spins);
}

}  // namespace collectives
