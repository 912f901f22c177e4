// Reductions over arrays in device memory, one array per replica: the counterpart of replicas/replicas.h.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "device/events.h"
#include "replicas/replicas.h"

namespace collectives {

// A tensor in device memory: source r lies on the device of replica r, destination d on that of replica owners[d].
struct DeviceTensor {
  ReplicaTensor arrays;
  std::span<const int> owners;
};

// Reduces all tensors to the same bits as reduce_replicas. replicas[r]: the device of replica r, and the stream in
// whose order its arrays are used. Returns when the work is in the streams.
//
// Where all replicas are on one device, one kernel reduces each tensor (with kChain each of its parts): it reads every
// source once and writes every destination once. Otherwise `algorithm`, an all-reduce with the order of operands of
// `combination`, runs for each dtype and op.
//
// Throws what reduce_replicas throws, ArgumentError where there are more than kMostDeviceOperands replicas, and
// CollectivesError (kBackend).
void reduce_device_replicas(Combination combination, int packs, const std::string& algorithm,
                            std::span<const DeviceTensor> tensors, std::span<const DeviceStream> replicas);

}  // namespace collectives
