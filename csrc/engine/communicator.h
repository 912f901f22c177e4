// A communicator: a group of ranks that run collectives together, as seen by one of them.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/topology.h"
#include "engine/engine.h"
#include "engine/executor/executor.h"
#include "engine/failure/explain.h"
#include "engine/failure/report.h"
#include "engine/groups/shrink.h"
#include "engine/messages.h"
#include "engine/plan.h"
#include "engine/slot_guard.h"
#include "engine/spare_works.h"
#include "engine/work.h"
#include "memory/domain.h"

namespace collectives {

struct CommunicatorOptions {
  std::uint32_t id = 0;      // the same on all members; the world has 0. Below 2^30
  std::vector<int> members;  // the rank in the world of each member; empty: the world itself
  Topology topology;
  std::string mapped_transport = "shm";
  bool threads = false;  // other ranks may be threads of this process
  double timeout_s = 600;
  double warn_s = 60;
  bool compare_shapes = true;  // of all_reduce, reduce and broadcast, not only lengths
};

class Communicator : public RowPlace<Communicator> {
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
  int world_rank(int member) const { return options_.members.empty() ? member : options_.members[member]; }
  // The member that is this rank of the world, -1 when it is none.
  int member_of(int world_rank) const;

  // Starts a collective. Throws ArgumentError or ArgumentTypeError for a call that is wrong by itself and the error of
  // the communicator when it has failed; neither consumes a sequence number. The work runs as far as it can without
  // waiting.
  std::shared_ptr<Work> post(const Call& call, bool async);
  // The same for a message to, or from, call.message.peer.
  std::shared_ptr<Work> post_message(const Call& call, bool async);
  // Waits until the work is finished and throws its error. False after timeout_s, where one is given (>= 0).
  bool wait(Work& work, double timeout_s);
  // Nobody waits for a message any more that was to be received. False when it has begun to come.
  bool withdraw(Work& work);
  // The first part of a blocking collective: runs it on this thread, without allocation where an earlier one was like
  // it, for as long as it does not have to wait long. True when it is done; otherwise go on with wait(*work) and hand
  // the work back with finish_run().
  bool run(const Call& call, std::shared_ptr<Work>& work);
  void finish_run(std::shared_ptr<Work> work);

  // Throws ForkedError in a child of the process that made the communicator.
  // Before the lock is taken: at the time of the fork a thread that the child does not have may have held it.
  void refuse_after_fork() const {
    if (engine_->forked()) {
      throw_forked();
    }
  }

  // Leaves the group in good order. Later calls raise ClosedError.
  void close();
  bool closed() const { return closed_; }

  // So many bytes of the own heap are in use by now.
  void use_heap(std::size_t bytes);

  // How the survivors make a communicator of their own.
  Shrinking& shrinking() { return shrinking_; }

  // Gives up on everything in flight, on all ranks: the caller's thread was told to stop, by `what`.
  void interrupt(const std::string& what);
  // The same because this rank ends by an error of the program, which `why` describes.
  void abandon(const std::string& why);
  // The same because something of this rank that is no part of the engine has failed, as NCCL can.
  void give_up(ErrorKind kind, const std::string& text);
  // Gives up in the handler of an exception that came in the middle of a call, or of progress: the others wait for what
  // does not come any more, and nothing of the engine may use the memory of a call whose caller believes that it has
  // failed. Ends the process where there is not even memory to do that. Under the lock of the engine.
  void fail_by_exception() noexcept;
  // Looks after the other ranks. Why the communicator has failed, or was closed, where it has; nullptr otherwise.
  std::unique_ptr<CollectivesError> failure();

  // Mean one-way latency in nanoseconds between this rank and `peer`; both must call it with the same arguments.
  double flag_latency(int peer, int rounds, double timeout_s);

  // Payload bytes that this rank has moved in collectives of this communicator that are over, by transport.
  std::map<std::string, std::int64_t> bytes_by_transport() const;
  std::string algorithm_of(const Call& call);

  // For the engine, under its lock.
  int idle_drives = 0;  // in a row that have found nothing in flight
  bool drive();
  bool busy() const { return !active_.empty() || !queued_.empty() || !messages_->active().empty(); }
  void look_after(Clock::time_point now);
  // about: the work that has failed, where it is not among those in flight.
  void fail(const Report& report, const Work* about = nullptr);
  void peer_gone(const Peer& peer);
  void reported(int world_rank, const Report& report);
  void noted(int world_rank, const std::vector<std::uint64_t>& words);
  bool has_left(int member) const;
  bool is_there(int member) const { return !has_left(member) && peer(member).state == Peer::State::kThere; }
  bool failed() const { return error_ != nullptr; }

  // For the explanation of a failure, under the lock of the engine. explain.cc
  std::vector<std::optional<Report>> reports();
  void tell_where(const Report& own, const std::string& found);
  Peer& peer(int member) const;

 private:
  // Collectives over TCP that may be in flight at a time.
  static constexpr std::size_t kMaxActive = 8;

  [[noreturn]] void throw_forked() const;
  void note(Report& own, const Work* current) const;
  void explain(const Report& told, const Work* current);
  std::string recent(std::int64_t sequence) const;
  int thread_of(int member) const;
  void note_caller();
  void prepare(Work& work, const Call& call);
  CallKey key_of(const Call& call) const;
  void prepare_again(Work& work, const Call& call);
  bool is_last(const Call& call) const;
  std::shared_ptr<Work>& prepared(const Call& call);
  void prepare_agreement(Work& work, const Call& call);
  void take_shapes(Work& work, const Call& call) const;
  // From here on the call counts.
  void number(Work& work) {
    work.posted.reset();
    work.warned = false;
    number_again(work);
  }
  // The same of one that ended without having been waited for.
  void number_again(Work& work) {
    work.record = 0;
    work.state.store(WorkState::kQueued, std::memory_order_relaxed);
    work.sequence = next_sequence_++;
    work.base = next_chunk_;
    next_chunk_ += work.plan->schedule.chunks;
  }
  void bind(Work& work, const Call& call, const Signature& signature, bool symmetric);
  static void scale(Work& work, const Call& call);
  void gather_spans(Work& work, std::int64_t bytes, std::int64_t result_bytes);
  void start(Work& work);
  void activate();
  bool step(Work& work, int spins);
  bool step_ended(Work& work, Progress progress);
  void complete(Work& work);
  void clear(Work& work);
  void update_completed();
  void publish_completed(std::uint64_t lowest);
  void mismatch(Work& work, int other, const Signature& theirs);
  bool drive_messages();
  bool step_message(const std::shared_ptr<Work>& work);
  std::vector<std::shared_ptr<Work>> pending() const;
  std::vector<int> missing(const Work& work) const;
  std::int64_t position(const Work& work) const;
  void fail_when_refused(Clock::time_point now);
  void fail_without_ranks_that_left(const std::shared_ptr<Work>& work);
  void tell(const Report& report);
  bool collect(int rank, Report* report) const;
  Report checked(const Report& report, int member) const;
  std::vector<int> waits_for(const Work& work) const;
  std::vector<int> waits_for_all() const;
  void find_culprit();
  std::string tensor_detail(int a, int b, const Work* work);
  void check_usable();
  bool usable() const { return !closed_ && error_ == nullptr && heard_ == nullptr; }
  void heed_before_call();
  bool stopped(const Work& work);
  // Nobody is known to have failed, and nobody can have told it by a link that has not been heard: streams may have
  // brought reports, but with a swap that went the short way none can have come.
  bool quiet(const Work& work) const {
    return error_ == nullptr && heard_ == nullptr && work.streams.empty() && !aborted();
  }
  // Some rank that maps the memory of this one has left a report. All there is to ask after a work that uses no link
  // has been run from its start: nothing else can have been heard meanwhile.
  bool aborted() const { return own_page_ != nullptr && own_page_->aborted.load(std::memory_order_acquire) != 0; }
  void hear(const Report& report);
  void hear_reports();
  void heed_reports(Clock::time_point now);
  void watch(Work& work);
  void watch_soon();
  void check_times(Clock::time_point now);
  void check_time(Work& work, Clock::time_point now);
  Report own_report(ErrorKind kind, std::string text) const;
  void tell_failure(const Report& report, const Work* about);
  void end_all() noexcept;
  void finish(Work& work, const Report& report);
  bool drive_works();
  bool run_prepared(std::shared_ptr<Work>& place, bool again, std::shared_ptr<Work>& work);
  std::string who(int member) const;
  void name_process(ErrorContext& context) const;
  std::string others_of_process(int member) const;
  bool maps(int member) const { return domain_ != nullptr && domain_->has(member); }
  // The link to a member that shares no memory with this rank, nullptr for the others.
  Link* message_link(int member) const;
  std::vector<Reading::Source> readable() const;
  void isolate_heap(std::size_t from = 0);
  void tell_left();
  void forget_links();

  friend class Shrinking;

  std::shared_ptr<Engine> engine_;
  std::unique_ptr<Domain> domain_;
  ControlPage* own_page_;  // nullptr where no rank is mapped
  CommunicatorOptions options_;
  std::vector<std::unique_ptr<Link>> mapped_links_;
  std::vector<std::unique_ptr<Link>> mail_links_;
  std::unique_ptr<Executor> executor_;
  std::optional<SlotGuard> slots_;
  std::unique_ptr<Messages> messages_;
  PlanCache plans_;
  std::vector<std::int64_t> counts_;  // of the call that is being prepared
  std::deque<std::shared_ptr<Work>> queued_;
  std::vector<std::shared_ptr<Work>> active_;
  SpareWorks spares_;
  // The last call that was run, where it was on one array and has a key. There is a work only while the communicator is
  // usable, nothing is in flight or waits for its turn, and the work is in its place and was not waited for: whatever
  // changes one of these forgets it. It is kept beside its place, which would be one load more before anything begins.
  struct LastCall {
    std::shared_ptr<Work>* place = nullptr;
    Work* work = nullptr;
    std::uint64_t head = 0;
    int algorithm = 0;
    double timeout_s = 0;  // as the call had it
    Span input;
    Span output;
    std::uint64_t shape = 0;
  };
  LastCall last_;
  std::uint64_t next_sequence_ = 0;
  std::uint64_t next_chunk_ = 0;
  std::int64_t mapped_bytes_ = 0;
  std::map<int, Report> received_;  // reports that came over links
  std::vector<bool> left_;          // members that have said over links that they have left
  std::unique_ptr<Report> heard_;   // the first that another rank has sent
  Clock::time_point heard_at_;
  std::optional<Clock::time_point> refused_since_;               // a read
  double next_check_ = std::numeric_limits<double>::infinity();  // of the time that works take; seconds of the clock
  Shrinking shrinking_{*this};
  std::unique_ptr<Report> error_;
  std::unique_ptr<Explanation> explanation_;
  std::size_t heap_used_ = 0;
  bool told_ = false;
  bool closed_ = false;
  bool driving_ = false;
};

}  // namespace collectives
