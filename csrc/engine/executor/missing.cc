// Which ranks a blocked work waits for: who is to blame, and what messages say.
#include <algorithm>

#include "engine/executor/executor.h"

namespace collectives {

std::vector<int> Executor::missing(const Work& work) const {
  std::vector<int> ranks;
  const Schedule& schedule = work.plan->schedule;
  if (work.step < work.end) {
    const auto waits = schedule.waits(schedule.steps[work.step]);
    if (const Step& step = schedule.steps[work.step]; step.kind == StepKind::kRead && work.next_wait == waits.size()) {
      ranks.push_back(schedule.sources(step)[0].member);  // which could not be read
    }
    for (std::size_t i = work.next_wait; i < waits.size(); ++i) {
      const FlagRef& flag = waits[i];
      const std::uint64_t index = work.base + flag.chunk + work.iteration;
      const bool there =
          flag.flag == kHeaderFlag
              ? domain_->header(flag.member, work.sequence).word.load(std::memory_order_acquire) >> 8 ==
                    work.sequence + 1
              : domain_->flag(flag.member, flag.flag, index).value.load(std::memory_order_acquire) > index;
      if (!there) {
        ranks.push_back(flag.member);
      }
    }
  }
  for (std::size_t i = 0; i < work.streams.size(); ++i) {
    if (!work.streams[i]->receives.empty() || !work.streams[i]->sends.empty()) {
      ranks.push_back(work.stream_peers[i]);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace collectives
