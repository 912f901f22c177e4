// Calls that are in their streams: waiting for them, checking them for failures, aborting, closing.

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "core/say.h"
#include "nccl/communicator.h"
#include "nccl/errors.h"
#include "nccl/text.h"

namespace collectives {
namespace {

// How long an abort waits for another thread to return from NCCL, whose calls should not block.
constexpr auto kAbortTimeout = std::chrono::milliseconds(200);
// How long NCCL may take for an orderly end.
constexpr auto kCloseTimeout = std::chrono::seconds(10);
constexpr auto kPause = std::chrono::microseconds(100);

}  // namespace

// Under mutex_. Whether the device has done the call. After an abort events happen, too, and prove nothing; works have
// their error before the abort (see fail()).
bool NcclCommunicator::query(NcclWork& work) {
  if (work.state != NcclWork::State::kIssued) {
    return work.state == NcclWork::State::kDone;
  }
  const int code = devices_.event_query(work.event);
  if (code == kDeviceNotReady) {
    return false;
  }
  require(code, "cudaEventQuery");
  work.state = NcclWork::State::kDone;
  free_events_.push_back(std::exchange(work.event, nullptr));
  return true;
}

// Under mutex_. Drops the works that are done.
void NcclCommunicator::reap() {
  std::vector<std::shared_ptr<NcclWork>> left;
  for (const auto& work : pending_) {
    if (!query(*work)) {
      left.push_back(work);
    }
  }
  pending_.swap(left);
}

// As query(), for a thread that waits: an error of the device fails the communicator.
bool NcclCommunicator::query_or_fail(NcclWork& work) {
  std::unique_ptr<CollectivesError> found;
  {
    const std::lock_guard guard(mutex_);
    if (work.error != nullptr) {
      throw CollectivesError(*work.error);
    }
    try {
      return query(work);
    } catch (const CollectivesError& error) {
      found = std::make_unique<CollectivesError>(error);
    }
  }
  fail(*found, true);
  const std::lock_guard guard(mutex_);
  throw CollectivesError(*work.error);
}

bool NcclCommunicator::done(NcclWork& work) {
  refuse_after_fork();
  try {
    return query_or_fail(work);
  } catch (const CollectivesError&) {
    return true;  // wait() says which
  }
}

bool NcclCommunicator::wait(NcclWork& work, double timeout_s) {
  refuse_after_fork();
  const auto started = NcclClock::now();
  constexpr int kYields = 100;
  for (int turn = 0; !query_or_fail(work); ++turn) {
    if (timeout_s >= 0 && seconds_since(started) >= timeout_s) {
      return false;
    }
    if (turn < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
  return true;
}

bool NcclCommunicator::idle() {
  const std::lock_guard guard(mutex_);
  return pending_.empty();
}

bool NcclCommunicator::failed() {
  if (process_ != getpid()) {
    return true;
  }
  const std::lock_guard guard(mutex_);
  return error_ != nullptr;
}

bool NcclCommunicator::check_pending() {
  std::string late;
  std::unique_ptr<CollectivesError> found;
  try {
    const std::lock_guard guard(mutex_);
    reap();
    if (pending_.empty()) {
      return false;
    }
    for (const auto& work : pending_) {
      const double age = seconds_since(work->posted);
      const bool expired = age >= work->timeout_s;
      if (!expired && (work->warned || age < warn_s_)) {
        continue;
      }
      std::string call = who();
      call.append(", ").append(nccl_call_text(work->collective, work->name));
      if (expired && work->state == NcclWork::State::kSubmitting) {  // as await_issued() would find in a moment
        found = std::make_unique<CollectivesError>(ErrorKind::kDeadline, call.append(nccl_in_progress_text(age)),
                                                   context(work->collective, work->name));
        break;
      }
      call.append(" is not done after ").append(nccl_seconds_text(age));
      const std::string limit = nccl_seconds_text(work->timeout_s);
      if (expired) {
        found = std::make_unique<CollectivesError>(
            ErrorKind::kDeadline,
            call.append(", longer than its timeout of ")
                .append(limit)
                .append(", although all ranks have made the call; see what their devices do (nvidia-smi), set "
                        "NCCL_DEBUG=INFO, or raise timeout= or COLLECTIVES_TIMEOUT"),
            context(work->collective, work->name));
        break;
      }
      work->warned = true;
      late.assign("collectives: warning: ").append(call).append("; it gives up after ").append(limit).append("\n");
    }
  } catch (const CollectivesError& error) {
    found = std::make_unique<CollectivesError>(error);
  }
  if (!late.empty()) {
    say(late);
  }
  if (found == nullptr && nccl_mutex_.try_lock()) {  // a thread that holds it sees NCCL's error itself
    NcclResult result = kNcclSuccess;
    if (!aborted_.load(std::memory_order_acquire)) {
      const NcclResult asked = library_.api.comm_get_async_error(comm_, &result);
      result = asked == kNcclSuccess ? result : asked;
    }
    if (result != kNcclSuccess && result != kNcclInProgress) {
      found = std::make_unique<CollectivesError>(nccl_error(library_.api, comm_, result, who(), context("", "")));
    }
    nccl_mutex_.unlock();
  }
  if (found != nullptr) {
    fail(*found, true);
    return false;
  }
  if (group_.failure) {
    if (found = group_.failure(); found != nullptr) {
      fail(*found, false);
      return false;
    }
  }
  return true;
}

// Records the first failure, gives its error to all works, and aborts. publish: whether to publish it to the other
// ranks.
void NcclCommunicator::fail(const CollectivesError& error, bool publish) {
  {
    const std::lock_guard guard(mutex_);
    if (error_ != nullptr) {
      return;
    }
    error_ = std::make_unique<CollectivesError>(error);
    for (const auto& work : pending_) {
      ErrorContext about = error.context();
      about.rank = rank();
      about.collective = work->collective;
      about.name = work->name;
      about.age_s = seconds_since(work->posted);
      std::string text = error.what();
      const std::string call = nccl_call_text(work->collective, work->name);
      if (text.find(call) == std::string::npos) {
        text = who().append(", ").append(call).append(": ").append(text);
      }
      work->error = std::make_unique<CollectivesError>(error.kind(), text, about);
      work->state = NcclWork::State::kFailed;
      if (work->event != nullptr) {
        free_events_.push_back(std::exchange(work->event, nullptr));
      }
    }
    pending_.clear();
  }
  if (publish && group_.fail) {
    group_.fail(error);
  }
  abort();
}

// Ends the kernels that wait for other ranks, and frees what NCCL holds.
void NcclCommunicator::abort() {
  std::unique_lock guard(nccl_mutex_, std::defer_lock);
  // Without the lock, if it must be: a thread that hangs in NCCL returns only after the abort.
  (void)guard.try_lock_for(kAbortTimeout);
  if (comm_ == nullptr || aborted_.exchange(true, std::memory_order_acq_rel)) {
    return;
  }
  int before = 0;
  const bool known = devices_.get_device(&before) == kDeviceOk;
  devices_.set_device(device_);
  library_.api.comm_abort(comm_);
  if (known) {
    devices_.set_device(before);
  }
}

// Waits for the calls in flight. True where NCCL's communicator has to be destroyed afterwards.
bool NcclCommunicator::stop() {
  if (process_ != getpid()) {
    return false;
  }
  {
    const std::lock_guard guard(mutex_);
    if (closed_) {
      return false;
    }
    closed_ = true;
  }
  while (!idle()) {  // each call ends, or the watchdog fails it
    std::this_thread::sleep_for(kPause);
  }
  return !failed();
}

void NcclCommunicator::close(std::span<NcclCommunicator* const> communicators) {
  std::vector<NcclCommunicator*> open;
  for (NcclCommunicator* communicator : communicators) {
    if (communicator->stop()) {
      open.push_back(communicator);
    }
  }
  const auto until = NcclClock::now() + kCloseTimeout;
  // First finalize all, since those of one process wait for each other in there; then destroy each.
  for (NcclCommunicator* communicator : open) {
    NcclResult result = kNcclSuccess;
    {
      const std::lock_guard guard(communicator->nccl_mutex_);
      if (!communicator->aborted_.load(std::memory_order_acquire)) {
        result = communicator->library_.api.comm_finalize(communicator->comm_);
      }
    }
    if (result != kNcclSuccess && result != kNcclInProgress) {
      communicator->abort();
    }
  }
  for (NcclCommunicator* communicator : open) {
    communicator->destroy(until);
  }
}

// Destroys NCCL's communicator when it is finalized; aborts it where it is not in time.
void NcclCommunicator::destroy(NcclClock::time_point until) {
  NcclResult result = state();
  while (result == kNcclInProgress && NcclClock::now() < until && (!group_.failure || group_.failure() == nullptr)) {
    std::this_thread::sleep_for(kPause);
    result = state();
  }
  if (result != kNcclSuccess) {
    abort();
    return;
  }
  const std::lock_guard guard(nccl_mutex_);
  if (!aborted_.exchange(true, std::memory_order_acq_rel)) {
    library_.api.comm_destroy(comm_);
  }
}

}  // namespace collectives
