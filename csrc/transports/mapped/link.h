// A message link over mapped memory: a ring of cells in each direction.
#pragma once

#include <memory>
#include <string_view>

#include "memory/domain.h"
#include "transports/transport.h"

namespace collectives {

// As measured between two cores that share a cache (docs/lab/index.md).
inline constexpr LinkCost kMappedCost = {0.15, 25000};

// The link of one communicator to one peer of its domain. The engine lets collectives use it one after the other, so
// cells arrive in the order of the schedules and need no matching.
std::unique_ptr<Link> make_mapped_link(const Domain& domain, int peer, std::string_view transport);

}  // namespace collectives
