// Reductions over arrays in device memory, one array per replica: the counterpart of replicas/replicas.h.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "device/events.h"
#include "replicas/replicas.h"

namespace collectives {

// A tensor whose arrays lie in device memory: the source of replica r on its device, each destination on the device of
// the replica that `owners` names.
struct DeviceTensor {
  ReplicaTensor arrays;
  std::span<const int> owners;
};

// Reduces all tensors with the same bits as reduce_replicas. replicas[r]: the device of replica r, and the stream in
// which its arrays are written before and used afterwards. Returns when the work has been put into streams.
//
// Where all replicas are on one device, each tensor (each of its parts, with kChain) is one kernel, which reads every
// source once and writes every destination once. Else the schedule of `algorithm`, an all-reduce whose order of
// operands is that of `combination`, is run for each dtype and op.
//
// Throws what reduce_replicas throws, ArgumentError where there are more than kMostDeviceOperands replicas, and
// CollectivesError (kBackend).
void reduce_device_replicas(Combination combination, int packs, const std::string& algorithm,
                            std::span<const DeviceTensor> tensors, std::span<const DeviceStream> replicas);

}  // namespace collectives
