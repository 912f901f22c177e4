// What a rank knows about a failure at the moment when it happens: for its report, and for the explanation on stderr.
#pragma once

#include <optional>

#include "engine/failure/explain.h"
#include "engine/failure/failure_reports.h"
#include "engine/in_flight.h"
#include "engine/members.h"
#include "engine/work.h"
#include "memory/domain.h"

namespace collectives {

// Where a rank looks for facts. domain: nullptr where no rank is mapped.
struct FailureSources {
  const Domain* domain;
  const CommunicatorOptions& options;
  const Members& members;
  const InFlight& in_flight;
  const Recorder& recorder;
};

// Fills in what the other ranks want to know. current: the call that has failed, or nullptr.
void add_facts(Report& own, const Work* current, const FailureSources& sources);

// What there is to explain, or to write into the recorder's folder; nothing where there is neither. own: the report of
// this rank; text: its error.
std::optional<Failure> facts_to_explain(const Report& own, const std::string& text, const Work* current,
                                        const FailureSources& sources);

}  // namespace collectives
