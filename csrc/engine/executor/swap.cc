// Collectives that begin with one short message each way.
#include <cstring>

#include "engine/executor/executor.h"
#include "engine/record.h"

namespace collectives {

// Takes the work past the swap, where the link has a short way for it and the peer's message comes in time; otherwise
// to where it goes on with a stream. Returns how often to look from there on.
int Executor::swap(Work& work, int spins) {
  const Plan& plan = *work.plan;
  const Step& send = plan.schedule.steps[0];
  Link& link = *links_[send.peer];
  if (work.record == 0) {
    record_posted(recorder_, work, communicator_);
  }
  const Swap swap{{communicator_, work.sequence},
                  work.signature,
                  work.places.operands[send.sources.begin].address(work.bases, 0),
                  send.length};
  if (!work.one_piece || !link.begin_swap(swap)) {
    take_memory(work);
    return spins;
  }
  std::byte* const received = link.finish_swap(swap, spins);
  if (received == nullptr) {
    take_scratch(work);
    Stream& stream = add_stream(work, send.peer);
    post(work, send);
    link.open_begun(stream, swap);
    work.step = 1;
    return 0;
  }
  sent_[send.peer] += swap.bytes;
  work.step = Plan::kSwapSteps;
  work.base_of(Region::kScratch) = reinterpret_cast<std::uintptr_t>(received);
  if (work.base_of(Region::kScratch) % plan.problem.element() != 0) {
    take_scratch(work);
    std::memcpy(work.scratch.data(), received, static_cast<std::size_t>(swap.bytes));
  }
  return spins;
}

}  // namespace collectives
