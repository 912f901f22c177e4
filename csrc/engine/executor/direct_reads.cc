#include "engine/executor/direct_reads.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "cpu/fence.h"

namespace collectives {

void DirectReads::offer(const Work& work) {
  Offer offer{};
  if (work.one_piece && reading_.permitted()) {
    const Span& input = work.input.spans[0];
    offer.input = reinterpret_cast<std::uint64_t>(input.data);
    offer.readable = input.bytes == 0 || reading_.fast(input) ? 1 : 0;
  }
  std::memcpy(domain_->header(rank_, work.sequence).payload, &offer, sizeof offer);
}

// Every rank has awaited the headers of all, which stay as they are until all ranks are done: so all choose the same.
void DirectReads::choose(Work& work, const Step& step, const std::vector<int>& mapped_peers) const {
  const auto readable = [&](int r) {
    Offer offer;
    std::memcpy(&offer, domain_->header(r, work.sequence).payload, sizeof offer);
    return offer.readable != 0;
  };
  const auto behind = static_cast<std::uint32_t>(step.length);
  if (readable(rank_) && std::all_of(mapped_peers.begin(), mapped_peers.end(), readable)) {
    work.step = behind - 1;  // where a step ends, the next one begins
  } else {
    work.end = behind;
  }
}

Look DirectReads::read(const Work& work, const Step& step) {
  const Operand& from = work.plan->schedule.sources(step)[0];
  const OperandPlace& to = work.places.operands[step.destinations.begin];
  Offer offer;
  std::memcpy(&offer, domain_->header(from.member, work.sequence).payload, sizeof offer);
  const auto offset = static_cast<std::uint64_t>(from.offset + from.stride * work.iteration);
  if (!reading_.read(from.member, to.address(work.bases, work.iteration), offer.input + offset, step.length)) {
    return Look::kNotYet;
  }
  // A rank that gives up, on whichever collective, publishes its failure report before its caller can write the array
  // or free it. So as long as no report is there, what was read is what the rank meant to give.
  full_fence();
  return domain_->control(rank_).aborted.load(std::memory_order_acquire) == 0 ? Look::kThere : Look::kNotYet;
}

}  // namespace collectives
