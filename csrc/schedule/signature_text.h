// Signatures as text. Beside the registry of algorithms, whose names it knows; a signature has their numbers.
#pragma once

#include <string>

#include "core/signature.h"

namespace collectives {

// The fields in which two signatures differ: "dtype: rank 0 has float32, rank 1 has float64; ...".
std::string difference(const Signature& a, int rank_a, const Signature& b, int rank_b);

}  // namespace collectives
