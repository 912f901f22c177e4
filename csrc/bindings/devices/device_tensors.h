// Reductions over PyTorch's tensors in the memory of one CUDA device, in the order of PyTorch's stream there: the calls
// that training makes thousands of times. All others on devices go through Python (_devices/replicas.py).
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

#include "core/device.h"

namespace collectives {

// As _reduce_replicas takes the pairs. Nothing where a value cannot take part as it is.
std::optional<pybind11::list> reduce_device_tensors(Combination combination, int packs, const pybind11::list& pairs);

}  // namespace collectives
