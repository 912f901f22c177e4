// Steps of schedules in which ranks may read each other's private memory, in place of a way through bounce buffers.
#pragma once

#include <utility>
#include <vector>

#include "engine/executor/progress.h"
#include "engine/executor/reading.h"
#include "engine/work.h"
#include "memory/domain.h"

namespace collectives {

class DirectReads {
 public:
  // domain: nullptr where no rank is mapped. readable[r]: how the memory of rank r is read.
  DirectReads(int rank, const Domain* domain, std::vector<Reading::Source> readable)
      : rank_(rank), domain_(domain), reading_(rank, std::move(readable)) {}

  // Says in the own header line, which is published after that, whether and where others can read the input.
  void offer(const Work& work);
  // Takes the work to one of its two ends: reads where all ranks can be read, bounce buffers where not.
  void choose(Work& work, const Step& step, const std::vector<int>& mapped_peers) const;
  // kNotYet: could not be read, or not surely: the process is dying, or some rank has given up, or the kernel refuses.
  // The failure monitor finds out which, in this order (Communicator::check).
  Look read(const Work& work, const Step& step);

  const Reading::Refusal& refusal() const { return reading_.refusal(); }

 private:
  int rank_;
  const Domain* domain_;
  Reading reading_;
};

}  // namespace collectives
