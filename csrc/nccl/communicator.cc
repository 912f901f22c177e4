#include "nccl/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "nccl/errors.h"
#include "nccl/text.h"
#include "nccl/watchdog.h"

namespace collectives {
namespace {

bool is_no_error(NcclResult result) { return result == kNcclSuccess || result == kNcclInProgress; }

// Yields at first, then sleeps longer and longer between polls.
class Backoff {
 public:
  void pause() {
    if (turns_++ < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(turns_ < kYields + kShort ? 50 : 1000));
    }
  }
  // Whether to make a check that costs more than a poll: every few milliseconds, and not at first.
  bool is_time_to_check() const { return turns_ > kYields && turns_ % kShort == 0; }

 private:
  static constexpr int kYields = 100;
  static constexpr int kShort = 10;
  int turns_ = 0;
};

// Restores the current device of this thread at the end of the scope.
class OnDevice {
 public:
  explicit OnDevice(const DeviceApi& devices) : devices_(devices) {
    known_ = devices_.get_device(&device_) == kDeviceOk;
  }
  ~OnDevice() {
    if (known_ && device_ >= 0) {  // -1: a device that the process does not use, which this would set up
      devices_.set_device(device_);
    }
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const DeviceApi& devices_;
  int device_ = 0;
  bool known_;
};

}  // namespace

NcclCommunicator::NcclCommunicator(const NcclLibrary& library, const DeviceApi& devices, NcclRank self, int device,
                                   double warn_s, NcclGroup group)
    : library_(library),
      devices_(devices),
      self_(self),
      device_(device),
      warn_s_(warn_s),
      group_(std::move(group)),
      process_(getpid()) {}

NcclCommunicator::~NcclCommunicator() {
  if (process_ != getpid()) {
    return;  // after a fork; all resources belong to the parent
  }
  abort();
  for (void* event : free_events_) {
    devices_.event_destroy(event);
  }
  if (scratch_ != nullptr) {
    devices_.release(scratch_);
  }
}

std::vector<std::shared_ptr<NcclCommunicator>> NcclCommunicator::create(
    const NcclLibrary& library, const DeviceApi& devices, const NcclUniqueId& id, int size,
    std::span<const Member> members, double timeout_s, double warn_s, const NcclGroup& group) {
  const NcclApi& api = library.api;
  const auto until = later(NcclClock::now(), timeout_s);
  const OnDevice restore(devices);
  std::vector<std::shared_ptr<NcclCommunicator>> made;
  std::vector<NcclCommunicator*> all;
  for (const Member& member : members) {
    made.push_back(std::shared_ptr<NcclCommunicator>(
        new NcclCommunicator(library, devices, {member.rank, size}, member.device, warn_s, group)));
    all.push_back(made.back().get());
  }
  NcclCommunicator* at_fault = all.front();
  NcclResult result = api.group_start();
  int code = kDeviceOk;
  if (result == kNcclSuccess) {
    for (std::size_t i = 0; i < all.size() && code == kDeviceOk && is_no_error(result); ++i) {
      at_fault = all[i];
      code = devices.set_device(at_fault->device_);
      if (code == kDeviceOk) {
        NcclConfig config;
        config.blocking = 0;
        result = api.comm_init_rank_config(&at_fault->comm_, size, id, at_fault->rank(), &config);
      }
    }
    // Also after a call that failed: each ncclGroupStart needs its ncclGroupEnd.
    const NcclResult end = api.group_end();
    result = is_no_error(result) ? end : result;
  }
  at_fault->require(code, "cudaSetDevice");
  const std::string doing = at_fault->who() + ", making the communicator of NCCL";
  if (is_no_error(result)) {
    const auto [failed, why] = await_issued(all, doing, until);
    at_fault = failed != nullptr ? failed : at_fault;
    result = why;
  }
  if (result != kNcclSuccess) {
    throw nccl_error(api, at_fault->comm_, result, doing, at_fault->context("", ""));
  }
  for (NcclCommunicator* communicator : all) {
    communicator->require(devices.allocate(communicator->device_, 1, &communicator->scratch_), "cudaMalloc");
  }
  monitor(made.front());  // starts the watchdog thread now, so that no call can fail for want of one
  return made;
}

ErrorContext NcclCommunicator::context(const std::string& collective, const std::string& name) const {
  ErrorContext context;
  context.rank = rank();
  context.collective = collective;
  context.name = name;
  return context;
}

std::string NcclCommunicator::who() const {
  return "rank " + std::to_string(rank()) + " (device " + std::to_string(device_) + ")";
}

void NcclCommunicator::require(int code, const char* function) const {
  if (code != kDeviceOk) {
    throw CollectivesError(
        ErrorKind::kBackend,
        who() + ": " + function + " gives " + devices_.error_name(code) + ": " + devices_.error_text(code),
        context("", ""));
  }
}

void NcclCommunicator::refuse_after_fork() const {
  if (process_ != getpid()) {
    throw CollectivesError(ErrorKind::kForked,
                           "this process was forked from one that used NCCL; only the parent can use it. Start "
                           "processes with the spawn method",
                           context("", ""));
  }
}

void NcclCommunicator::throw_if_unusable() {
  refuse_after_fork();
  const std::lock_guard guard(mutex_);
  if (error_ != nullptr) {
    throw CollectivesError(*error_);
  }
  if (closed_) {
    throw CollectivesError(ErrorKind::kClosed, who() + ": the communicator is closed", context("", ""));
  }
}

void NcclCommunicator::check(const NcclCall& call) {
  throw_if_unusable();
  check_nccl_call(call, self_);
  if (const NcclOperation operation = nccl_operation(call.collective, call.op, call.dtype, library_.version);
      operation.scaled && call.factor.empty()) {
    throw ArgumentError("premul_sum needs a factor");
  }
}

// Makes the work of a call. The watchdog checks it from here on, also while NCCL is being called.
void NcclCommunicator::track(const NcclCall& call, std::shared_ptr<NcclWork>& work) {
  work = std::make_shared<NcclWork>();
  work->communicator = shared_from_this();
  work->posted = NcclClock::now();
  work->timeout_s = call.timeout_s;
  work->collective = call.collective == Collective::kMessage ? (call.sending ? "send" : "recv")
                                                             : std::string(collectives::name(call.collective));
  work->name = call.name;
  {
    const std::lock_guard guard(mutex_);
    if (error_ != nullptr) {
      throw CollectivesError(*error_);
    }
    pending_.push_back(work);
  }
  try {
    monitor(work->communicator);
  } catch (...) {
    const std::lock_guard guard(mutex_);
    std::erase(pending_, work);
    throw;
  }
}

// NCCL has put the call into the stream: records an event behind it, which says when the call is done.
void NcclCommunicator::record_end(NcclWork& work, const NcclCall& call) {
  int capturing = 0;
  // Default streams are those of the current device.
  require(devices_.set_device(device_), "cudaSetDevice");
  require(devices_.stream_capturing(call.stream, &capturing), "cudaStreamIsCapturing");
  const std::lock_guard guard(mutex_);
  if (error_ != nullptr) {
    throw CollectivesError(*error_);
  }
  if (capturing != 0) {
    work.state = NcclWork::State::kDone;  // when the graph runs the call is not known here
    std::erase_if(pending_, [&](const auto& entry) { return entry.get() == &work; });
    return;
  }
  if (free_events_.empty()) {
    require(devices_.event_create(device_, false, &work.event), "cudaEventCreate");
  } else {
    work.event = free_events_.back();
    free_events_.pop_back();
  }
  require(devices_.event_record(work.event, call.stream), "cudaEventRecord");
  work.state = NcclWork::State::kIssued;
}

NcclResult NcclCommunicator::issue(std::span<const RankCall> calls, std::span<NcclResult> results) {
  const NcclApi& api = calls.front().communicator->library_.api;
  std::vector<NcclOperation> operations;
  NcclResult result = kNcclSuccess;
  for (const auto& [communicator, call] : calls) {
    NcclOperation& operation = operations.emplace_back(
        nccl_operation(call->collective, call->op, call->dtype, communicator->library_.version));
    if (operation.scaled && result == kNcclSuccess) {
      std::vector<std::byte> factor = call->factor;
      result = api.red_op_create_pre_mul_sum(&operation.op, factor.data(), operation.type, kNcclScalarHostImmediate,
                                             communicator->comm_);
      operation.scaled = result == kNcclSuccess;
    }
  }
  if (result == kNcclSuccess) {
    result = api.group_start();
  }
  if (result == kNcclSuccess) {
    for (std::size_t i = 0; i < calls.size() && is_no_error(result); ++i) {
      const auto& [communicator, call] = calls[i];
      result =
          issue_nccl_call(api, *call, communicator->self_, operations[i], communicator->scratch_, communicator->comm_);
      results[i] = result;
    }
    const NcclResult end = api.group_end();  // also after a call that failed
    result = is_no_error(result) ? end : result;
  }
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (operations[i].scaled && !calls[i].communicator->aborted_.load(std::memory_order_acquire)) {
      api.red_op_destroy(operations[i].op, calls[i].communicator->comm_);
    }
  }
  return result;
}

std::vector<std::shared_ptr<NcclWork>> NcclCommunicator::start(std::span<const RankCall> calls) {
  std::vector<std::shared_ptr<NcclWork>> works(calls.size());
  std::vector<NcclCommunicator*> all;
  for (const auto& [communicator, call] : calls) {
    communicator->check(*call);
    all.push_back(communicator);
  }
  NcclCommunicator& first = *all.front();
  const OnDevice restore(first.devices_);
  const std::string doing = nccl_call_text(std::string(name(calls.front().call->collective)), calls.front().call->name);
  try {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      all[i]->track(*calls[i].call, works[i]);
    }
    const NcclWork& work = *works.front();
    NcclResult result = kNcclSuccess;
    NcclCommunicator* at_fault = &first;
    std::vector<NcclResult> results(calls.size(), kNcclSuccess);
    {
      std::vector<std::unique_lock<std::timed_mutex>> locks;
      for (NcclCommunicator* communicator : all) {
        locks.emplace_back(communicator->nccl_mutex_);
      }
      for (NcclCommunicator* communicator : all) {
        communicator->throw_if_unusable();  // it may have been aborted since the check above
      }
      result = issue(calls, results);
    }
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (!is_no_error(results[i])) {
        at_fault = all[i];
      }
    }
    if (result == kNcclInProgress) {  // the calls are not in the streams yet
      const auto [failed, why] = await_issued(all, doing, later(work.posted, work.timeout_s));
      at_fault = failed != nullptr ? failed : at_fault;
      result = why;
    }
    for (NcclCommunicator* communicator : all) {
      communicator->throw_if_unusable();
    }
    if (result != kNcclSuccess) {
      throw nccl_error(first.library_.api, nullptr, result, at_fault->who() + ", " + doing,
                       at_fault->context(work.collective, work.name));
    }
    for (std::size_t i = 0; i < calls.size(); ++i) {
      all[i]->record_end(*works[i], *calls[i].call);
    }
  } catch (const CollectivesError& error) {
    for (NcclCommunicator* communicator : all) {
      communicator->fail(error, true);
    }
    const std::lock_guard guard(first.mutex_);
    if (works.front() != nullptr && works.front()->error != nullptr) {
      throw CollectivesError(*works.front()->error);  // the watchdog may have been first, with an error that says more
    }
    throw;
  }
  return works;
}

NcclResult NcclCommunicator::state() {
  const std::lock_guard guard(nccl_mutex_);
  NcclResult found = kNcclSuccess;
  if (comm_ == nullptr || aborted_.load(std::memory_order_acquire)) {
    return found;
  }
  const NcclResult asked = library_.api.comm_get_async_error(comm_, &found);
  return asked == kNcclSuccess ? found : asked;
}

std::pair<NcclCommunicator*, NcclResult> NcclCommunicator::await_issued(
    std::span<NcclCommunicator* const> communicators, const std::string& doing, NcclClock::time_point until) {
  const auto started = NcclClock::now();
  NcclCommunicator& first = *communicators.front();
  for (Backoff backoff;; backoff.pause()) {
    bool in_progress = false;
    for (NcclCommunicator* communicator : communicators) {
      const NcclResult result = communicator->state();
      if (!is_no_error(result)) {
        return {communicator, result};
      }
      in_progress = in_progress || result == kNcclInProgress;
    }
    if (!in_progress) {
      return {nullptr, kNcclSuccess};
    }
    if (backoff.is_time_to_check() && first.group_.failure) {
      if (const auto failure = first.group_.failure(); failure != nullptr) {
        throw CollectivesError(failure->kind(), first.who() + ", " + doing + ": " + failure->what(),
                               failure->context());
      }
    }
    if (NcclClock::now() >= until) {
      throw CollectivesError(ErrorKind::kDeadline,
                             first.who() + ", " + doing + nccl_in_progress_text(seconds_since(started)),
                             first.context("", ""));
    }
  }
}

}  // namespace collectives
