// Which rank is to blame when the time is up.
//
// The ranks that a late collective waits for may be waiting themselves, for the one rank that has stopped. So the one
// whose time is up first publishes a report, each of the others answers with the ranks that it waits for, and all
// follow these answers from the first to a rank that does not answer, or that answers that it waits for none.
#pragma once

#include "engine/failure/failure_reports.h"
#include "engine/in_flight.h"

namespace collectives {

// Corrects a report about a passed deadline: whom it suspects, and its text. Waits for answers, for a part of the time
// that the collective took.
void find_suspect(Report& error, FailureReports& reports, const InFlight& in_flight);

}  // namespace collectives
