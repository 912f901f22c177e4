// Communicators by number, for callers that can keep nothing but a number, as the nodes of a graph do.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/communicator.h"

namespace collectives {

// The number of a communicator in this process; the same each time it is asked for. Numbers are never used again, and
// do not keep the communicator alive.
std::int64_t number_of(const std::shared_ptr<Communicator>& communicator);

// From now on the number is that of another communicator, which takes the place of the one that it was of.
void renumber(std::int64_t number, const std::shared_ptr<Communicator>& communicator);

// The communicator of a number. Throws ClosedError when it is gone, or never was.
std::shared_ptr<Communicator> communicator_by_number(std::int64_t number);

}  // namespace collectives
