// What can be seen of a schedule without running it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/topology.h"
#include "schedule/algorithm.h"
#include "schedule/schedule.h"

namespace collectives::verification {

// Throws Violation when a schedule of one rank breaks a rule of schedule/schedule.h that needs no execution: ranges
// inside their pools, loops that do not nest, operands and chunks inside their regions, mapped regions only of ranks
// that are mapped, signals only of the own flags, and the header line first, both among the signals of a rank and among
// what it awaits from each other rank.
void check_structure(const Schedule& schedule, const Problem& problem, const Topology& topology, const Limits& limits);

// Throws Violation when schedules of different ranks do not fit: the slot base must advance equally on all ranks of a
// mapped domain, and each of them signals its header exactly once when any of them waits for one.
void check_agreement(const std::vector<Schedule>& schedules, const Topology& topology);

// The text of one step.
std::string step_text(const Schedule& schedule, std::size_t step);

}  // namespace collectives::verification
