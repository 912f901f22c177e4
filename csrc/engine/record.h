// How a call comes into the recorder, which knows nothing of the engine.
#pragma once

#include "engine/work.h"

namespace collectives {

void describe_to(Recorder& recorder, Work& work, std::uint32_t communicator);

// The work begins to count.
inline void record_posted(Recorder& recorder, Work& work, std::uint32_t communicator) {
  if (recorder.needs_description(work)) [[unlikely]] {
    describe_to(recorder, work, communicator);
  }
  recorder.posted(work);
}

}  // namespace collectives
