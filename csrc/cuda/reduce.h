// The entry `reduce` of the table of core/device.h, and the loading of its kernels.
#pragma once

#include "core/device.h"

namespace collectives {

// Loads all kernels into `device`, which is the current one. Otherwise the first launch of each would load it, which
// may wait for the device.
void load_kernels(int device);

int launch_reduction(const DeviceReduction* reduction, void* stream);

}  // namespace collectives
