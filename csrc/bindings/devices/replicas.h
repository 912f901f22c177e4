// Reductions and concatenations of arrays of one process, for collectives.cross_device_ops.
#pragma once

#include <pybind11/pybind11.h>

namespace collectives {

// Adds `_reduce_replicas`, `_gather_replicas`, `_replica_bytes` and `_limit_threads`.
void bind_replicas(pybind11::module_& m);

}  // namespace collectives
