// The thread that looks after all communicators of NCCL in this process that have calls in flight.
#pragma once

#include <memory>

namespace collectives {

class NcclCommunicator;

// From now on, until nothing is in flight.
void watch(const std::shared_ptr<NcclCommunicator>& communicator);

}  // namespace collectives
