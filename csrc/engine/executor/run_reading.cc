// The executor's steps where ranks may read each other's private memory.

#include <algorithm>
#include <atomic>
#include <cstring>

#include "cpu/fence.h"
#include "engine/executor/executor.h"

namespace collectives {

// Written before the header is signalled.
void Executor::offer(const Work& work) {
  Offer offer{};
  if (work.one_piece && reading_.permitted()) {
    const Span& input = work.input.spans[0];
    offer.input = reinterpret_cast<std::uint64_t>(input.data);
    offer.readable = input.bytes == 0 || reading_.fast(input) ? 1 : 0;
  }
  std::memcpy(domain_->header(rank_, work.sequence).payload, &offer, sizeof offer);
}

// All have awaited all headers, which stay as they are until everyone is done: so all come to the same.
void Executor::choose(Work& work, const Step& step) const {
  const auto readable = [&](int r) {
    Offer offer;
    std::memcpy(&offer, domain_->header(r, work.sequence).payload, sizeof offer);
    return offer.readable != 0;
  };
  const auto behind = static_cast<std::uint32_t>(step.length);
  if (readable(rank_) && std::all_of(mapped_peers_.begin(), mapped_peers_.end(), readable)) {
    work.step = behind - 1;  // where a step ends, the next one begins
  } else {
    work.end = behind;
  }
}

// Not there: the process is dying, or some rank has given up, or the kernel refuses. Whoever waits finds out which, in
// this order (Communicator::look_after).
Executor::Look Executor::read(const Work& work, const Step& step) {
  const Operand& from = work.plan->schedule.sources(step)[0];
  const OperandPlace& to = work.places.operands[step.destinations.begin];
  Offer offer;
  std::memcpy(&offer, domain_->header(from.member, work.sequence).payload, sizeof offer);
  const auto offset = static_cast<std::uint64_t>(from.offset + from.stride * work.iteration);
  if (!reading_.read(from.member, to.address(work.bases, work.iteration), offer.input + offset, step.length)) {
    return Look::kNotYet;
  }
  // A rank that gives up, on whichever collective, tells the others before its caller can write the array or free it:
  // so what was read while nobody had is what was meant.
  full_fence();
  return domain_->control(rank_).aborted.load(std::memory_order_acquire) == 0 ? Look::kThere : Look::kNotYet;
}

}  // namespace collectives
