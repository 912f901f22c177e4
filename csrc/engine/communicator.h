// A communicator: a group of ranks that run collectives together, as seen by one of them.
//
// The class is a facade. What a call needs is prepared by CallPreparation, or found by RepeatedCalls; InFlight knows
// what runs and in which order, and Driver takes it on; FailureReports, FailureMonitor and FailureHandler see to
// failures.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/intrusive_list.h"
#include "core/topology.h"
#include "engine/call_preparation.h"
#include "engine/driver.h"
#include "engine/engine.h"
#include "engine/failure/failure_handler.h"
#include "engine/failure/failure_reports.h"
#include "engine/failure/monitor.h"
#include "engine/groups/shrink.h"
#include "engine/in_flight.h"
#include "engine/members.h"
#include "engine/repeated_calls.h"
#include "engine/symmetric_heap.h"
#include "engine/work.h"
#include "memory/domain.h"

namespace collectives {

class Communicator : public ListNode<Communicator> {
 public:
  Communicator(std::shared_ptr<Engine> engine, std::unique_ptr<Domain> domain, CommunicatorOptions options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return options_.topology.rank; }
  int size() const { return options_.topology.size; }
  const Topology& topology() const { return options_.topology; }
  const CommunicatorOptions& options() const { return options_; }
  const Domain* domain() const { return domain_.get(); }
  const std::shared_ptr<Engine>& engine() const { return engine_; }
  const Members& members() const { return members_; }

  // Starts a collective. Throws ArgumentError or ArgumentTypeError for a call that is wrong by itself and the error of
  // the communicator when it has failed; neither consumes a sequence number. The work runs as far as it can without
  // waiting.
  std::shared_ptr<Work> post(const Call& call, bool async);
  // The same for a call that is the first of several. The work is over when the last of them is.
  std::shared_ptr<Work> post(const Call& first, std::unique_ptr<Continuation> continuation, bool async);
  // The same for a message to, or from, call.message.peer.
  std::shared_ptr<Work> post_message(const Call& call, bool async);
  // How the work runs and its number, which change where it continues.
  const Algorithm* algorithm_of(const Work& work) const;
  std::uint64_t sequence_of(const Work& work) const;
  // Waits until the work is finished and throws its error. False after timeout_s, where one is given (>= 0).
  bool wait(Work& work, double timeout_s);
  // The first message with the tag that has come from rank `source`, or with Message::kAny from any, and that no
  // receive takes; it stays there. Waits for one, for timeout_s at most (0: only looks). Throws what post_message()
  // throws, and PeerError where no rank is left that could send one.
  std::optional<Incoming> probe(int source, int tag, double timeout_s);
  // The message that was to be received is not wanted any more. False when it has begun to come.
  bool withdraw(Work& work);
  // The first part of a blocking collective: runs it on this thread, without allocation where an earlier one was like
  // it, for as long as it does not have to wait long. True when it is done; otherwise go on with wait(*work) and hand
  // the work back with finish_run().
  bool run(const Call& call, std::shared_ptr<Work>& work);
  void finish_run(std::shared_ptr<Work> work);

  // Calls back when the work of an asynchronous call is finished, which it may be already: on the engine's completion
  // thread and without its lock. The callback may start calls, and must not block (see Completion::Ticket). close()
  // waits until it has returned. Throws ClosedError after close().
  void add_callback(const std::shared_ptr<Work>& work, Completion::Callback callback);
  // The works in flight that have callbacks.
  std::vector<std::shared_ptr<Work>> with_callbacks() const;

  // Throws ForkedError in a child of the process that made the communicator.
  // Before the lock is taken: at the time of the fork a thread that the child does not have may have held it.
  void refuse_after_fork() const {
    if (engine_->forked()) {
      throw_forked();
    }
  }

  // Leaves the group in good order: ends what is in flight by an error, and waits for the callbacks of all works. Later
  // calls raise ClosedError. False where callbacks have not returned after a timeout (>= 0); close() then waits again.
  bool close(double timeout_s = -1);
  // Also without the lock of the engine.
  bool closed() const { return closed_.load(std::memory_order_relaxed); }

  // This many bytes of the own heap are in use by now.
  void use_heap(std::size_t bytes);
  // How the survivors make a communicator of their own.
  Shrinking& shrinking() { return shrinking_; }

  // Gives up on everything in flight, on all ranks: `what` has interrupted the caller's thread.
  void interrupt(const std::string& what);
  // The same because this rank ends by an error of the program, which `why` describes.
  void abandon(const std::string& why);
  // The same because something of this rank that is no part of the engine has failed, as NCCL can.
  void give_up(ErrorKind kind, const std::string& text);
  // Checks the other ranks. Why the communicator has failed, or was closed, where it has; nullptr otherwise.
  std::unique_ptr<CollectivesError> failure();
  // The same without checking, under the lock of the engine.
  std::unique_ptr<CollectivesError> known_failure();

  // Payload bytes that this rank has moved in operations of this communicator that are over, by transport.
  std::map<std::string, std::int64_t> bytes_by_transport() const;

  // For the engine, for Shrinking and for Meeting, under the lock of the engine.
  int idle_drives = 0;  // in a row that have found nothing in flight
  bool drive() { return driver_.drive(); }
  bool busy() const { return in_flight_.busy(); }
  void check(Clock::time_point now);
  void peer_gone(const Peer& peer);
  void receive_report(int world_rank, const Report& report) { reports_.receive(world_rank, report); }
  void receive_note(int world_rank, const std::vector<std::uint64_t>& words);
  void fail(const Report& report) { failure_.fail(report); }
  void fail_by_exception() noexcept { failure_.fail_by_exception(); }
  Report report(ErrorKind kind, int suspect, std::string text) const;
  bool failed() const { return failure_.failed(); }
  std::uint64_t completed() const { return in_flight_.completed(); }
  // Throws when this communicator, or that of another rank, has failed, or it is closed.
  void act_on_report_before_call();

 private:
  [[noreturn]] void throw_forked() const;
  void publish_caller();
  void leave();
  void refuse_after_close() const;
  void check_usable();
  bool usable() const { return !closed() && !failure_.knows_of_failure(); }
  std::shared_ptr<Work>& prepared(const Call& call);
  void prepare(Work& work, const Call& call);
  bool run_prepared(std::shared_ptr<Work>& place, bool again, std::shared_ptr<Work>& work);
  void watch(Work& work);
  void watch_soon();

  std::shared_ptr<Engine> engine_;
  std::unique_ptr<Domain> domain_;
  CommunicatorOptions options_;
  Members members_;
  InFlight in_flight_;
  RepeatedCalls calls_;
  CallPreparation preparation_;
  SymmetricHeap heap_;
  FailureReports reports_;
  FailureHandler failure_;
  Driver driver_;
  FailureMonitor monitor_;
  Shrinking shrinking_{*this};
  std::shared_ptr<Completion::Pending> callbacks_ = std::make_shared<Completion::Pending>();
  std::atomic<bool> closed_ = false;
};

}  // namespace collectives
