// Collectives that begin with one short message each way, for which a link may have a shorter way than streams.
#pragma once

#include <cstdint>

#include "engine/executor/stream_pool.h"
#include "engine/work.h"

namespace collectives {

class ShortSendRecv {
 public:
  explicit ShortSendRecv(StreamPool& pool) : pool_(pool) {}

  // Whether run() is what the work does next.
  static bool begins(const Work& work) { return work.plan->begins_with_sendrecv && work.step == 0; }
  // Takes the work past the sendrecv, where the link has a short way for it and the peer's message comes in time;
  // otherwise to the step from where it goes on with a stream. Returns how often to look from there on.
  int run(Work& work, int spins);

 private:
  StreamPool& pool_;
};

}  // namespace collectives
