// The reduction of several ranges of abstract memory.
#pragma once

#include <vector>

#include "verify/shadow.h"
#include "verify/values.h"

namespace collectives::verification {

// Cuts the sources where any of them has a border, and reduces piece by piece. Throws Violation when the sources hold
// different elements at one place, or a contribution would count twice.
Data combine(Values& values, const std::vector<Data>& sources, bool finish);

}  // namespace collectives::verification
