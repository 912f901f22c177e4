// The failure monitor of a communicator: what is checked every few milliseconds while calls are in flight.
//
// It looks for failure reports, for ranks that cannot be read any more, for disagreement, for ranks that have left, and
// at the time; and has the communicator fail, or warns.
#pragma once

#include <limits>
#include <memory>
#include <optional>

#include "engine/driver.h"
#include "engine/engine.h"
#include "engine/failure/failure_handler.h"
#include "engine/failure/failure_reports.h"
#include "engine/in_flight.h"
#include "engine/members.h"
#include "engine/work.h"

namespace collectives {

class FailureMonitor {
 public:
  // The parts of the same communicator.
  FailureMonitor(const CommunicatorOptions& options, const Members& members, InFlight& in_flight,
                 FailureReports& reports, FailureHandler& failure, Driver& driver);

  // From here on the work, unless it is finished, takes time.
  void watch(Work& work);
  // The same of a call that its thread is about to wait for. The next check, milliseconds from now, reads the clock:
  // that would take a good part of a short call.
  void watch_soon() { next_time_check_ = 0; }

  // What is known of other ranks: reports, and reads that the kernel has refused.
  void check_others(Clock::time_point now);
  // The works: disagreement, ranks that have left, the time.
  void check_works(Clock::time_point now);

 private:
  void check_reports(Clock::time_point now);
  void check_refused_reads(Clock::time_point now);
  void check_started_works();
  void check_receives_from_any();
  void check_ranks_that_left(const std::shared_ptr<Work>& work);
  void check_times(Clock::time_point now);
  void check_time(Work& work, Clock::time_point now);

  const CommunicatorOptions& options_;
  const Members& members_;
  InFlight& in_flight_;
  FailureReports& reports_;
  FailureHandler& failure_;
  Driver& driver_;
  std::optional<Clock::time_point> refused_since_;                    // reads of another rank's memory
  double next_time_check_ = std::numeric_limits<double>::infinity();  // seconds of the clock
};

}  // namespace collectives
