#include "predict/profile.h"

#include <array>
#include <string>

#include "core/error.h"

namespace collectives {
namespace {

// No machine is beyond these: such a number is a mistake, or was measured while others used the machine.
constexpr std::int64_t kMostNs = 500'000;
constexpr std::int64_t kMostPs = 100'000;           // of a byte
constexpr std::int64_t kLeastRate = 100'000;        // bytes per ms: 100 MB/s
constexpr std::int64_t kMostRate = 10'000'000'000;  // 10 TB/s

using Costs = ProfileCosts&;

constexpr CostRow nanoseconds_of_rank(std::string_view name, std::int64_t& (*member)(ProfileCosts&)) {
  return {name, 1, kMostNs, kNanosecond, member};
}
constexpr CostRow picoseconds(std::string_view name, std::int64_t& (*member)(ProfileCosts&)) {
  return {name, 1, kMostPs, 1, member};
}
constexpr CostRow latency(std::string_view name, std::int64_t& (*member)(ProfileCosts&)) {
  return {name, 1, kMostNs, 1, member};
}
constexpr CostRow rate(std::string_view name, std::int64_t& (*member)(ProfileCosts&)) {
  return {name, kLeastRate, kMostRate, 1, member};
}

constexpr std::array kRows = {
    latency("host_latency_ns", [](Costs c) -> std::int64_t& { return c.host.latency_ns; }),
    rate("host_bytes_per_ms", [](Costs c) -> std::int64_t& { return c.host.bytes_per_ms; }),
    rate("host_shared_bytes_per_ms", [](Costs c) -> std::int64_t& { return c.host.shared_bytes_per_ms; }),
    rate("host_swapped_bytes_per_ms", [](Costs c) -> std::int64_t& { return c.host.swapped_bytes_per_ms; }),
    rate("host_copy_bytes_per_ms", [](Costs c) -> std::int64_t& { return c.host.copy_bytes_per_ms; }),
    latency("crowded_latency_ns", [](Costs c) -> std::int64_t& { return c.host.crowded_latency_ns; }),
    rate("crowded_bytes_per_ms", [](Costs c) -> std::int64_t& { return c.host.crowded_bytes_per_ms; }),
    rate("crowded_shared_bytes_per_ms", [](Costs c) -> std::int64_t& { return c.host.crowded_shared_bytes_per_ms; }),
    nanoseconds_of_rank("send_message_ns", [](Costs c) -> std::int64_t& { return c.processor.send_message; }),
    nanoseconds_of_rank("receive_message_ns", [](Costs c) -> std::int64_t& { return c.processor.receive_message; }),
    picoseconds("send_byte_ps", [](Costs c) -> std::int64_t& { return c.processor.send_byte; }),
    picoseconds("receive_byte_ps", [](Costs c) -> std::int64_t& { return c.processor.receive_byte; }),
    nanoseconds_of_rank("mapped_message_ns", [](Costs c) -> std::int64_t& { return c.processor.mapped_message; }),
    picoseconds("mapped_byte_ps", [](Costs c) -> std::int64_t& { return c.processor.mapped_byte; }),
    picoseconds("copy_byte_ps", [](Costs c) -> std::int64_t& { return c.processor.copy_byte; }),
    picoseconds("reduce_byte_ps", [](Costs c) -> std::int64_t& { return c.processor.reduce_byte; }),
    nanoseconds_of_rank("step_ns", [](Costs c) -> std::int64_t& { return c.processor.step; }),
    nanoseconds_of_rank("resume_ns", [](Costs c) -> std::int64_t& { return c.processor.resume; }),
    nanoseconds_of_rank("resume_crowded_ns", [](Costs c) -> std::int64_t& { return c.processor.resume_crowded; }),
};

// Nanoseconds to microseconds, and bytes per millisecond to bytes per microsecond.
void put(std::int64_t said, double& constant) {
  if (said > 0) {
    constant = static_cast<double>(said) / 1000;
  }
}

}  // namespace

std::span<const CostRow> cost_rows() { return kRows; }

void ProfileCosts::set(std::string_view name, std::int64_t value) {
  for (const CostRow& row : kRows) {
    if (row.name == name) {
      if (value < row.low || value > row.high) {
        throw ArgumentError(std::string(name) + " is " + std::to_string(value) + "; accepted are " +
                            std::to_string(row.low) + " to " + std::to_string(row.high));
      }
      row.member(*this) = value * row.unit;
      return;
    }
  }
  throw ArgumentError("there is no cost '" + std::string(name) + "'");
}

void ProfileCosts::apply(const Topology& topology, CostModel& model) const {
  put(host.copy_bytes_per_ms, model.copy_bytes_per_us);
  if (topology.crowded()) {
    // Measured with four ranks on two cores. With others, by as much as this differs from what is built in for those.
    Topology four;
    four.size = 4;
    four.host.assign(4, 0);
    four.ranks_per_core = 2;
    const CostModel built_in = CostModel::of(four, {}, {});
    CostModel measured = built_in;
    put(host.crowded_latency_ns, measured.mapped.latency_us);
    put(host.crowded_bytes_per_ms, measured.mapped.bytes_per_us);
    put(host.crowded_shared_bytes_per_ms, measured.shared_bytes_per_us);
    put(host.crowded_shared_bytes_per_ms, measured.swapped_bytes_per_us);  // ranks on one core have one cache
    model.mapped.latency_us *= measured.mapped.latency_us / built_in.mapped.latency_us;
    model.mapped.bytes_per_us *= measured.mapped.bytes_per_us / built_in.mapped.bytes_per_us;
    model.shared_bytes_per_us *= measured.shared_bytes_per_us / built_in.shared_bytes_per_us;
    model.swapped_bytes_per_us *= measured.swapped_bytes_per_us / built_in.swapped_bytes_per_us;
    return;
  }
  put(host.latency_ns, model.mapped.latency_us);
  put(host.bytes_per_ms, model.mapped.bytes_per_us);
  put(host.shared_bytes_per_ms, model.shared_bytes_per_us);
  put(host.swapped_bytes_per_ms, model.swapped_bytes_per_us);
}

}  // namespace collectives
