// The entry `reduce` of the table, and what has to be done before.
#pragma once

#include "core/device.h"

namespace collectives {

// Loads all kernels into the current device. Left to the first launch of each, loading could wait for the device.
void load_kernels(int device);

int launch_reduction(const DeviceReduction* reduction, void* stream);

}  // namespace collectives
