// Takes the operations of a communicator on: runs what is in flight as far as it comes without waiting, and has the
// communicator fail where ranks disagree or have given up.
#pragma once

#include <memory>

#include "engine/call_preparation.h"
#include "engine/engine.h"
#include "engine/failure/failure_handler.h"
#include "engine/in_flight.h"
#include "engine/work.h"

namespace collectives {

class Driver {
 public:
  Driver(Engine& engine, CallPreparation& preparation, InFlight& in_flight, FailureHandler& failure)
      : engine_(engine), preparation_(preparation), in_flight_(in_flight), failure_(failure) {}

  // Takes on all that is in flight; true when something has moved. Never throws: an exception fails the communicator.
  bool drive();
  // Takes on one that has started, a collective or a message; true when it is finished.
  bool step(const std::shared_ptr<Work>& work);
  // The executor has run a collective until it stopped like this; true when the collective is finished, or continues by
  // another call, which is prepared but not in its place yet.
  bool after_run(Work& work, Progress progress);

 private:
  bool drive_collectives();
  bool drive_messages();
  bool step_message(Work& work);
  void prepare_next_call(Work& work);
  void start_others(const std::shared_ptr<Work>& over);

  Engine& engine_;
  CallPreparation& preparation_;
  InFlight& in_flight_;
  FailureHandler& failure_;
  bool driving_ = false;
};

}  // namespace collectives
