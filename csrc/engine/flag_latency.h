// The latency of a flag between two ranks, by which benchmarks tell where their cores are.
#pragma once

#include "memory/domain.h"

namespace collectives {

// Mean one-way latency in nanoseconds between this rank and `peer`; both must call it with the same arguments. Throws
// ArgumentError for a peer that shares no memory with this rank, DeadlineError where it does not take part in time.
double flag_latency(const Domain* domain, int rank, int size, int peer, int rounds, double timeout_s);

}  // namespace collectives
