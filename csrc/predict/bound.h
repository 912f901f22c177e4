// What the schedules of a job cannot be faster than, counted in place of being run in virtual time.
#pragma once

#include <vector>

#include "core/network.h"
#include "core/topology.h"
#include "predict/fold.h"
#include "predict/machine.h"
#include "schedule/schedule.h"

namespace collectives {

// At most what a Simulation of the same arguments finds: the time that the busiest port needs for its bytes, the
// busiest thread for its steps, or the busiest machine for those of all its ranks.
Picoseconds least_time(const std::vector<Schedule>& schedules, const Topology& topology, const Network& network,
                       const Fold& fold, const ProcessorCosts& costs);

}  // namespace collectives
