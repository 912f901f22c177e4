#include "engine/executor/short_sendrecv.h"

#include <cstring>

#include "engine/executor/link_steps.h"
#include "transports/transport.h"

namespace collectives {

int ShortSendRecv::run(Work& work, int spins) {
  const Plan& plan = *work.plan;
  const Step& send = plan.schedule.steps[0];
  Link& link = *pool_.links()[send.peer];
  const SendRecv sendrecv{{pool_.communicator(), work.sequence},
                          work.signature,
                          work.places.operands[send.sources.begin].address(work.bases, 0),
                          send.length};
  if (!work.one_piece || !link.begin_sendrecv(sendrecv)) {
    pool_.acquire(work);
    return spins;
  }
  std::byte* const received = link.finish_sendrecv(sendrecv, spins);
  if (received == nullptr) {
    pool_.acquire_scratch(work);
    Stream& stream = pool_.add_stream(work, send.peer);
    LinkSteps::post(work, send);
    link.open_begun(stream, sendrecv);
    work.step = 1;
    return 0;
  }
  pool_.add_sent(send.peer, sendrecv.bytes);
  work.step = Plan::kSendRecvSteps;
  work.base_of(Region::kScratch) = reinterpret_cast<std::uintptr_t>(received);
  if (work.base_of(Region::kScratch) % plan.problem.element() != 0) {
    pool_.acquire_scratch(work);
    std::memcpy(work.scratch.data(), received, static_cast<std::size_t>(sendrecv.bytes));
  }
  return spins;
}

}  // namespace collectives
