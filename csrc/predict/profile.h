// What a profile says of a kind of machine (python/collectives/_startup/profile.py): costs that `collectives tune` has
// measured there, in place of the constants with which the choice of algorithms counts otherwise.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/topology.h"
#include "predict/machine.h"
#include "schedule/algorithm.h"

namespace collectives {

// Of ranks of one host, for the formulas of algorithms. Zero: the profile does not say it, so the constant stays.
struct HostCosts {
  std::int64_t latency_ns = 0;
  std::int64_t bytes_per_ms = 0;
  std::int64_t shared_bytes_per_ms = 0;
  std::int64_t swapped_bytes_per_ms = 0;
  std::int64_t copy_bytes_per_ms = 0;
  // With more ranks than cores.
  std::int64_t crowded_latency_ns = 0;
  std::int64_t crowded_bytes_per_ms = 0;
  std::int64_t crowded_shared_bytes_per_ms = 0;
};

struct ProfileCosts {
  ProcessorCosts processor;
  HostCosts host;

  // Puts what the profile says in place of the model's constants.
  void apply(const Topology& topology, CostModel& model) const;
  // Sets the cost of that name. Throws ArgumentError where there is none, or the value is out of its range.
  void set(std::string_view name, std::int64_t value);
};

// A cost as files name it.
struct CostRow {
  std::string_view name;  // with its unit
  std::int64_t low;       // the least and the most that are accepted
  std::int64_t high;
  std::int64_t unit;  // as a multiple of that of the member
  std::int64_t& (*member)(ProfileCosts&);
};

// All of them, in the order of files.
std::span<const CostRow> cost_rows();

}  // namespace collectives
