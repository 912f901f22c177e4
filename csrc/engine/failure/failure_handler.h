// How a communicator fails: every call in flight ends with one error, all other ranks get a report, and no later call
// begins.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <string>

#include "core/error.h"
#include "engine/engine.h"
#include "engine/failure/explain.h"
#include "engine/failure/failure_facts.h"
#include "engine/failure/failure_reports.h"
#include "engine/in_flight.h"
#include "engine/members.h"
#include "engine/repeated_calls.h"
#include "engine/symmetric_heap.h"
#include "engine/work.h"
#include "memory/domain.h"

namespace collectives {

class FailureHandler {
 public:
  // domain: nullptr where no rank is mapped. The others are the parts of the same communicator.
  FailureHandler(Engine& engine, const Domain* domain, const CommunicatorOptions& options, const Members& members,
                 InFlight& in_flight, FailureReports& reports, RepeatedCalls& calls, SymmetricHeap& heap);

  // The error of the communicator, nullptr while it has not failed.
  const Report* error() const { return error_.get(); }
  // Also without the lock of the engine.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  bool knows_of_failure() const { return error_ != nullptr || reports_.first() != nullptr; }

  // Fails, unless the communicator has failed before. about: the work that has failed, where it is not in flight.
  void fail(const Report& report, const Work* about = nullptr);
  // The same with a report about this rank itself.
  void fail_here(ErrorKind kind, const std::string& text);
  // The same where another rank is known to have failed, at once.
  void act_on_report(const Work* about = nullptr);
  // Ranks disagree about a collective, or about a message.
  void fail_by_mismatch(Work& work, int other, const Signature& theirs);
  // Ranks disagree about the next call of a work. Only that ends: all of them know, and go on alike.
  void refuse(Work& work, const Disagreement& found);
  // A member has died, or cannot be reached any more.
  void fail_by_loss(int member, const Peer& peer);
  // In the handler of an exception that came in the middle of a call, or of progress: the others wait for what does not
  // come any more, and nothing of the engine may use the memory of a call whose caller believes that it has failed.
  // Ends the process where there is not even memory to do that.
  void fail_by_exception() noexcept;

  // True when a work that has all it needs must fail all the same: ranks that gave up on this collective may have left
  // their part of it before they did.
  bool must_fail(const Work& work);
  // No rank is known to have failed, and no link can have brought a report that was not looked at: streams may have
  // brought some, but with a sendrecv that went the short way none can have come.
  bool quiet(const Work& work) const { return !knows_of_failure() && work.streams.empty() && !reports_.signalled(); }

  // Ends one work that is not finished, with the error that the report makes.
  void finish(Work& work, const Report& report);

  // The thread that says on stderr what happened, nullptr where there is none.
  Explanation* explanation() const { return explanation_.get(); }

 private:
  void publish(const Report& report, const Work* about);
  void end_all() noexcept;
  std::string error_text(const Work& work, const Report& report, std::int64_t done) const;

  Engine& engine_;
  const CommunicatorOptions& options_;
  const Members& members_;
  InFlight& in_flight_;
  FailureReports& reports_;
  RepeatedCalls& calls_;
  SymmetricHeap& heap_;
  FailureSources sources_;
  std::unique_ptr<Report> error_;
  std::atomic<bool> failed_ = false;  // whether there is one
  std::unique_ptr<Explanation> explanation_;
};

}  // namespace collectives
