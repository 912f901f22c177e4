// The fast path of reductions over PyTorch's tensors on one CUDA device, in the order of PyTorch's current stream
// there. All other reductions on devices go through Python (_devices/replicas.py).
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

#include "core/device.h"

namespace collectives {

// pairs: as those of _reduce_replicas. nullopt where a value is not such a tensor.
std::optional<pybind11::list> reduce_device_tensors(Combination combination, int packs, const pybind11::list& pairs);

}  // namespace collectives
