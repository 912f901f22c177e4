#include "engine/executor/flag_words.h"

namespace collectives {

FlagWords::FlagWords(int rank, int size, const Domain* domain, const Recorder& recorder, SignatureCheck& check)
    : rank_(rank),
      domain_(domain),
      peers_completed_(static_cast<std::size_t>(size), 0),
      tactics_(rank, domain, recorder),
      check_(check) {
  for (int r = 0; domain_ != nullptr && r < domain_->size(); ++r) {
    if (r != rank_ && domain_->has(r)) {
      mapped_peers_.push_back(r);
    }
  }
}

void FlagWords::add_missing(const Work& work, std::vector<int>& ranks) const {
  const Schedule& schedule = work.plan->schedule;
  const auto waits = schedule.waits(schedule.steps[work.step]);
  for (std::size_t i = work.next_wait; i < waits.size(); ++i) {
    const FlagRef& flag = waits[i];
    const std::uint64_t index = work.base + flag.chunk + work.iteration;
    const bool there =
        flag.flag == kHeaderFlag
            ? domain_->header(flag.member, work.sequence).word.load(std::memory_order_acquire) >> 8 == work.sequence + 1
            : domain_->flag(flag.member, flag.flag, index).value.load(std::memory_order_acquire) > index;
    if (!there) {
      ranks.push_back(flag.member);
    }
  }
}

bool FlagWords::find_mismatch(const Work& work) {
  for (const int r : mapped_peers_) {
    const HeaderLine& line = domain_->header(r, work.sequence);
    // Acquire: the line was written before its word, and so was whatever the rank had to read before it.
    const std::uint64_t word = line.word.load(std::memory_order_acquire);
    if (word >> 8 == work.sequence + 1 && compare_header(work, r, line, word) == Look::kDiffers) {
      return true;
    }
  }
  return false;
}

}  // namespace collectives
