// What moving bytes between two ranks costs, for the cost functions of algorithms.
#pragma once

namespace collectives {

struct LinkCost {
  double latency_us = 0;    // microseconds
  double bytes_per_us = 1;  // bandwidth
};

}  // namespace collectives
