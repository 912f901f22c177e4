// One rank of a group that NCCL connects, on one device.
//
// NCCL's communicators are made non-blocking: no call of NCCL waits for other ranks, so all waiting is done here, with
// deadlines and while the other ranks are monitored. Calls go into the caller's stream, and an event behind each says
// when the device has done it. A watchdog thread checks the calls in flight: NCCL's asynchronous errors, their
// deadlines, and the engine's communicator. At the first failure the communicator is aborted, once, which ends the
// kernels that wait for other ranks. All calls in flight, and all later ones, then have that error.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/error.h"
#include "nccl/call.h"
#include "nccl/library.h"
#include "nccl/text.h"

namespace collectives {

// Failures that a rank of NCCL's shares with a communicator of the engine. Empty functions where there is none.
struct NcclGroup {
  // Why the communicator of the engine has failed; nullptr while it has not.
  std::function<std::unique_ptr<CollectivesError>()> failure;
  // Publishes a failure of NCCL on this rank to the others.
  std::function<void(const CollectivesError&)> fail;
};

class NcclCommunicator;

// One call in flight. Guarded by the mutex of the communicator.
struct NcclWork {
  enum class State { kSubmitting, kIssued, kDone, kFailed };
  std::shared_ptr<NcclCommunicator> communicator;
  State state = State::kSubmitting;
  void* event = nullptr;  // nullptr while the stream is captured into a graph
  NcclClock::time_point posted;
  double timeout_s = 0;
  bool warned = false;
  std::string collective;
  std::string name;
  std::unique_ptr<CollectivesError> error;
};

class NcclCommunicator : public std::enable_shared_from_this<NcclCommunicator> {
 public:
  struct Member {
    int rank = 0;
    int device = 0;
  };
  // What one rank does in a group of calls.
  struct RankCall {
    NcclCommunicator* communicator;
    const NcclCall* call;
  };

  // Makes the communicators of the members, which are ranks of this process in a group of `size`. Waits for the other
  // ranks, timeout_s at most. warn_s: the age at which a warning says that a call is late.
  static std::vector<std::shared_ptr<NcclCommunicator>> create(const NcclLibrary& library, const DeviceApi& devices,
                                                               const NcclUniqueId& id, int size,
                                                               std::span<const Member> members, double timeout_s,
                                                               double warn_s, const NcclGroup& group);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const { return self_.rank; }
  int size() const { return self_.size; }
  int device() const { return device_; }

  // Throws when the communicator has failed or is closed, when the arguments are wrong, and for what NCCL lacks.
  void check(const NcclCall& call);
  // Puts the calls into their streams, as one group of NCCL's. The memory may be used in the order of the streams.
  static std::vector<std::shared_ptr<NcclWork>> start(std::span<const RankCall> calls);
  // Waits until the device has done the call; throws its error. False after timeout_s, where that is not negative.
  bool wait(NcclWork& work, double timeout_s);
  bool done(NcclWork& work);

  // Checks the calls in flight, and fails the communicator where one has failed. False when none is left in flight.
  bool check_pending();
  bool idle();
  bool failed();

  // Waits for the calls in flight, then destroys NCCL's communicators. Those of one process must be closed together,
  // since NCCL has them wait for each other.
  static void close(std::span<NcclCommunicator* const> communicators);

 private:
  NcclCommunicator(const NcclLibrary& library, const DeviceApi& devices, NcclRank self, int device, double warn_s,
                   NcclGroup group);

  void refuse_after_fork() const;
  void throw_if_unusable();
  void track(const NcclCall& call, std::shared_ptr<NcclWork>& work);
  void record_end(NcclWork& work, const NcclCall& call);
  void reap();
  bool query(NcclWork& work);
  bool query_or_fail(NcclWork& work);
  NcclResult state();
  static NcclResult issue(std::span<const RankCall> calls, std::span<NcclResult> results);
  // Waits until NCCL has put all calls into their streams. Returns the first communicator that fails, with its result;
  // nullptr where none does.
  static std::pair<NcclCommunicator*, NcclResult> await_issued(std::span<NcclCommunicator* const> communicators,
                                                               const std::string& doing, NcclClock::time_point until);
  void fail(const CollectivesError& error, bool publish);
  void abort();
  bool stop();
  void destroy(NcclClock::time_point until);
  ErrorContext context(const std::string& collective, const std::string& name) const;
  std::string who() const;
  void require(int code, const char* function) const;

  const NcclLibrary& library_;
  const DeviceApi& devices_;
  NcclRank self_;
  int device_;
  double warn_s_;
  NcclGroup group_;
  int process_;

  // Held during calls of NCCL. Timed, since a call that should not block may hang, and then only an abort ends it.
  std::timed_mutex nccl_mutex_;
  NcclComm comm_ = nullptr;
  std::atomic<bool> aborted_{false};

  std::mutex mutex_;  // guards what follows
  std::vector<std::shared_ptr<NcclWork>> pending_;
  std::vector<void*> free_events_;
  void* scratch_ = nullptr;
  std::unique_ptr<CollectivesError> error_;
  bool closed_ = false;
};

}  // namespace collectives
