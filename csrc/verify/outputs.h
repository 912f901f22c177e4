// What must hold of the results once everything has run.
#pragma once

#include <vector>

#include "verify/world.h"

namespace collectives::verification {

// outputs[r]: what the user of rank r has read after the call, empty where it gets nothing. Throws Violation unless
// each holds every contribution exactly once, combined in the same order on every rank; of a prefix, those of the ranks
// up to its own, in whatever order. Fills in what the verdict says of it.
void check_outputs(World& world, int call, const std::vector<Data>& outputs);

}  // namespace collectives::verification
