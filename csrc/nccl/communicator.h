// One rank of a group that NCCL connects, on one device.
//
// NCCL's communicators are made non-blocking: no call of NCCL waits for other ranks, so this library's own waits decide
// how long, and watch the other ranks meanwhile. Calls go into the caller's stream, and an event behind each says when
// it is over. A watchdog looks at the calls that are not: at NCCL's asynchronous errors, at the time, and at the group
// of the engine. Where something is wrong it aborts the communicator, once, which ends the kernels that wait for other
// ranks; all calls in flight, and all later ones, then have the same error.
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
#include "nccl/words.h"

namespace collectives {

// What a rank of NCCL's shares with a communicator of the engine. Empty functions where there is none.
struct NcclGroup {
  // Why the communicator of the engine has failed; nullptr while it has not.
  std::function<std::unique_ptr<CollectivesError>()> failure;
  // NCCL has failed here: has the others told.
  std::function<void(const CollectivesError&)> fail;
};

class NcclCommunicator;

// One call in flight. Guarded by the communicator.
struct NcclWork {
  enum class State { kEntering, kIssued, kDone, kFailed };
  std::shared_ptr<NcclCommunicator> communicator;
  State state = State::kEntering;
  void* event = nullptr;  // none while the stream is captured into a graph
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
  struct Part {
    NcclCommunicator* communicator;
    const NcclCall* call;
  };

  // Those of this process, of a group of `size` ranks. Waits for the others, timeout_s at most. warn_s: when a call is
  // first said to be late.
  static std::vector<std::shared_ptr<NcclCommunicator>> create(const NcclLibrary& library, const DeviceApi& devices,
                                                               const NcclUniqueId& id, int size,
                                                               std::span<const Member> members, double timeout_s,
                                                               double warn_s, const NcclGroup& group);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  int device() const { return device_; }

  // Throws when no call can be made any more, or this one is wrong by itself, or is one that NCCL lacks.
  void check(const NcclCall& call);
  // Puts the calls into their streams, as one group of NCCL's. The memory may be used in the order of the streams.
  static std::vector<std::shared_ptr<NcclWork>> start(std::span<const Part> parts);
  // Waits until the device has done it. False after timeout_s where that is not negative; throws its error.
  bool wait(NcclWork& work, double timeout_s);
  bool done(NcclWork& work);

  // Looks after what is in flight. False when nothing is.
  bool look_after();
  bool idle();
  bool failed();

  // Waits for what is in flight, then leaves. Those of one process that belong together are closed together.
  static void close(std::span<NcclCommunicator* const> communicators);

 private:
  NcclCommunicator(const NcclLibrary& library, const DeviceApi& devices, NcclPlace place, int device, double warn_s,
                   NcclGroup group);

  void refuse_after_fork() const;
  void throw_if_unusable();
  void enter(const NcclCall& call, std::shared_ptr<NcclWork>& work);
  void leave(NcclWork& work, const NcclCall& call);
  void reap();
  bool query(NcclWork& work);
  bool ask(NcclWork& work);
  NcclResult state();
  static NcclResult issue(std::span<const Part> parts, std::span<NcclResult> results);
  // Waits until none of NCCL's calls is in progress. The first that fails, and its result.
  static std::pair<NcclCommunicator*, NcclResult> settle(std::span<NcclCommunicator* const> communicators,
                                                         const std::string& doing, NcclClock::time_point until);
  void fail(const CollectivesError& error, bool tell);
  void abort();
  bool stop();
  void destroy(NcclClock::time_point until);
  ErrorContext context(const std::string& collective, const std::string& name) const;
  std::string who() const;
  void require(int code, const char* function) const;

  const NcclLibrary& library_;
  const DeviceApi& devices_;
  NcclPlace place_;
  int device_;
  double warn_s_;
  NcclGroup group_;
  int process_;

  // Held during calls of NCCL. Timed, since a call may hang in spite of all, which only an abort ends.
  std::timed_mutex nccl_mutex_;
  NcclComm comm_ = nullptr;
  std::atomic<bool> aborted_{false};

  std::mutex mutex_;  // what follows
  std::vector<std::shared_ptr<NcclWork>> pending_;
  std::vector<void*> free_events_;
  void* scratch_ = nullptr;
  std::unique_ptr<CollectivesError> error_;
  bool closed_ = false;
};

}  // namespace collectives
