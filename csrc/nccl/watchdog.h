// The watchdog: a thread that checks all communicators of NCCL in this process that have calls in flight.
#pragma once

#include <memory>

namespace collectives {

class NcclCommunicator;

// Has the watchdog check the communicator from now on, until it has no call in flight.
void monitor(const std::shared_ptr<NcclCommunicator>& communicator);

}  // namespace collectives
