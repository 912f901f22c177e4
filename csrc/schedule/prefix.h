// Schedules of prefix reductions: rank r gets what ranks 0 to r combine to (scan), or ranks 0 to r - 1 (exscan, which
// leaves the output of rank 0 alone).
//
// Where the order is canonical, values are combined from rank 0 upwards, and each partial result is rounded to the
// type: the result of rank r is that of rank r - 1 combined with its own value. So no step has `finish`, which would
// end the row, but one: an output that only one rank contributes to passes a reduction of one source, which makes 0 or
// 1 of it for logical operations.
#pragma once

#include <cstdint>
#include <string_view>

#include "schedule/algorithm.h"

namespace collectives {

class Prefix {
 public:
  Prefix(const Problem& problem, const Topology& topology, const Limits& limits);

  // Every rank publishes its values, and combines those of the ranks below it. Of ranks that are all mapped.
  Schedule by_reading() const;
  // Every rank combines what the rank below it passes on with its own values, and passes that on, chunk by chunk:
  // through bounce buffers where all ranks are mapped, else by messages.
  Schedule by_pipeline() const;
  // In round k rank r passes what it has on to rank r + 2^k, by messages. It holds what it has sent in each round.
  Schedule by_doubling() const;
  static std::string_view too_long_to_double(const Problem& problem);

  static double cost_of_reading(const Problem& problem, const Topology& topology, const CostModel& model);
  static double cost_of_pipeline(const Problem& problem, const Topology& topology, const CostModel& model);
  static double cost_of_doubling(const Problem& problem, const Topology& topology, const CostModel& model);

 private:
  Schedule pipeline_of_buffers() const;
  Schedule pipeline_of_messages() const;
  // Adds the reductions of what rank r has published in place(r), for all ranks that contribute to this one.
  template <class Place>
  void fold(ScheduleBuilder& b, const Chunk& c, const Place& place) const;
  // Adds the step that makes an output of what is complete in `from`.
  void deliver(ScheduleBuilder& b, const Operand& from, const Chunk& c) const;
  std::int64_t whole(std::int64_t bytes) const { return bytes / element_ * element_; }

  Limits limits_;
  std::int64_t bytes_;
  std::int64_t element_;
  int me_;
  int last_;  // the rank to which nobody listens
  bool exclusive_;
  bool mapped_;
};

}  // namespace collectives
