// Which tensors two ranks disagree about, in words.
#pragma once

#include <string>

#include "engine/failure/failure_reports.h"
#include "engine/work.h"

namespace collectives {

// "; tensor 2 ('x'): rank 0 has 4 elements, rank 1 has 5", with the lists of names where there are any and the calls
// before. Signatures do not tell, but both ranks publish the lengths of their tensors when they learn of the mismatch,
// so this waits for their reports, a second at most. work: the call of this rank, or nullptr.
std::string tensor_difference(FailureReports& reports, int a, int b, const Work* work);

}  // namespace collectives
