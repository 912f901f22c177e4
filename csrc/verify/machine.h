// The abstract machine of the verifier: all ranks, their memory, flags and links, and the engine's guards between
// calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/topology.h"
#include "schedule/algorithm.h"
#include "schedule/schedule.h"
#include "verify/flags.h"
#include "verify/messages.h"
#include "verify/regions.h"
#include "verify/verifier.h"
#include "verify/world.h"

namespace collectives::verification {

class Machine {
 public:
  // reads: how every rank chooses, where schedules leave it open.
  Machine(const std::vector<Schedule>& schedules, const Problem& problem, const Topology& topology,
          const VerifyOptions& options, bool reads, Verdict& verdict);

  // Runs everything; throws Violation with the place in the text.
  void run();

 private:
  bool advance(int r);
  bool start(int r);
  bool finish(int r);
  bool is_ready(int r, const Step& step) const;
  void execute(int r, const Step& step);
  void copy(int r, const Step& step);
  void reduce(int r, const Step& step);
  void count_step(int r, StepKind kind);
  std::string stuck() const;

  bool reads_;
  World world_;
  Regions regions_{world_};
  Flags flags_{world_};
  Messages messages_{world_, regions_};
  std::vector<std::vector<std::uint32_t>> started_;  // [call][rank], the own clock, 0 until then
  std::vector<std::vector<Clock>> completed_;        // [call][rank], empty until then
  std::vector<std::vector<Data>> outputs_;           // [call][rank], what the user read
};

}  // namespace collectives::verification
