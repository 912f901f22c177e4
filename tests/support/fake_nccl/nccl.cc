// NCCL's functions.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>

#include "fake.h"

using namespace collectives;
using fake::called;
using fake::Comm;
using fake::Operation;

#ifndef FAKE_NCCL_VERSION
#define FAKE_NCCL_VERSION 22809
#endif

namespace fake {
namespace {

struct Controls {
  std::mutex mutex;
  std::map<std::string, int> settings;
  std::map<std::string, int> counts;
  std::map<std::string, std::pair<int, int>> faults;  // function: which call of it, and its result
  std::string last_error;
  void* last_stream = nullptr;

  Controls() {
    const char* text = std::getenv("FAKE_NCCL");
    std::string rest = text != nullptr ? text : "";
    while (!rest.empty()) {
      const std::string entry = rest.substr(0, rest.find(','));
      rest = entry.size() < rest.size() ? rest.substr(entry.size() + 1) : "";
      settings[entry.substr(0, entry.find('='))] = std::atoi(entry.substr(entry.find('=') + 1).c_str());
    }
  }
};

Controls& controls() {
  static auto* made = new Controls;
  return *made;
}

thread_local int depth = 0;
thread_local NcclResult group_error = kNcclSuccess;
thread_local std::vector<std::pair<Comm*, Operation>> grouped;

Shared* open_shared(const NcclUniqueId& id) {
  const char* folder = std::getenv("FAKE_NCCL_DIR");
  std::string path = std::string(folder != nullptr ? folder : "/tmp") + "/fake_nccl_";
  for (int i = 0; i < 8; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(id.internal[i]));
    path += digits;
  }
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, kBytes) != 0) {
    std::abort();
  }
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return static_cast<Shared*>(memory);
}

NcclResult end_group() {
  std::vector<std::pair<Comm*, Operation>> all;
  all.swap(grouped);
  const NcclResult error = std::exchange(group_error, kNcclSuccess);
  if (error != kNcclSuccess) {
    return error;
  }
  std::vector<Comm*> comms;
  for (auto& [comm, operation] : all) {
    if (std::find(comms.begin(), comms.end(), comm) == comms.end()) {
      comms.push_back(comm);
    }
    const std::lock_guard guard(comm->mutex);
    comm->deferred.push_back(operation);
  }
  while (setting("hang") != 0 && !comms.empty() && !comms.front()->aborted.load(std::memory_order_acquire)) {
    usleep(100);
  }
  const int polls = setting("call_polls");
  for (Comm* comm : comms) {
    const std::lock_guard guard(comm->mutex);
    comm->polls = polls;
    if (polls == 0) {
      comm->flush();
    }
  }
  return polls > 0 && !comms.empty() ? kNcclInProgress : kNcclSuccess;
}

NcclResult enqueue(const char* function, NcclComm handle, Operation operation) {
  auto* comm = reinterpret_cast<Comm*>(handle);
  const NcclResult result = called(function);
  if (result != kNcclSuccess) {
    group_error = depth > 0 ? result : kNcclSuccess;
    return result;
  }
  if (const auto found = comm->scales.find(operation.op); found != comm->scales.end()) {
    operation.scale = found->second;
  }
  {
    const std::lock_guard guard(controls().mutex);
    controls().last_stream = operation.stream;
  }
  grouped.emplace_back(comm, operation);
  return depth == 0 ? end_group() : kNcclSuccess;
}

void release(Comm* comm) {
  {
    const std::lock_guard guard(comm->mutex);
    comm->leaving = true;
  }
  comm->wake.notify_all();
  comm->worker.join();
  munmap(comm->shared, kBytes);  // the rest stays: a test may call with what was freed
}

}  // namespace

NcclResult called(const char* function) {
  const std::lock_guard guard(controls().mutex);
  const int number = controls().counts[function]++;
  const auto found = controls().faults.find(function);
  return found != controls().faults.end() && found->second.first == number
             ? static_cast<NcclResult>(found->second.second)
             : kNcclSuccess;
}

int setting(const char* name) {
  const std::lock_guard guard(controls().mutex);
  const auto found = controls().settings.find(name);
  return found == controls().settings.end() ? 0 : found->second;
}

// Puts what was deferred into its streams. Under the mutex.
void Comm::flush() {
  if (deferred.empty()) {
    return;
  }
  for (const Operation& operation : deferred) {
    stream_issued(operation.stream);
  }
  groups.push_back(std::move(deferred));
  deferred.clear();
  wake.notify_all();
}

void Comm::run() {
  for (;;) {
    std::vector<Operation> group;
    {
      std::unique_lock guard(mutex);
      wake.wait(guard, [this] { return leaving || !groups.empty(); });
      if (groups.empty()) {
        return;
      }
      group = std::move(groups.front());
      groups.pop_front();
    }
    perform(*this, group);  // kernels end when they are aborted, too
    for (const Operation& operation : group) {
      stream_done(operation.stream);
    }
  }
}

}  // namespace fake

extern "C" {

// For tests.
void fake_set(const char* name, int value) {
  const std::lock_guard guard(fake::controls().mutex);
  fake::controls().settings[name] = value;
}
// Call `number` of the function from now on, from 0, returns `code`.
void fake_fail(const char* function, int number, int code, const char* last_error) {
  const std::lock_guard guard(fake::controls().mutex);
  fake::controls().faults[function] = {fake::controls().counts[function] + number, code};
  fake::controls().last_error = last_error;
}
int fake_count(const char* function) {
  const std::lock_guard guard(fake::controls().mutex);
  return fake::controls().counts[function];
}
int fake_depth() { return fake::depth; }
std::uintptr_t fake_last_stream() {
  const std::lock_guard guard(fake::controls().mutex);
  return reinterpret_cast<std::uintptr_t>(fake::controls().last_stream);
}

NcclResult ncclGetVersion(int* version) {
  *version = FAKE_NCCL_VERSION;
  return called("ncclGetVersion");
}
NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  std::random_device random;
  for (char& byte : id->internal) {
    byte = static_cast<char>(random());
  }
  return called("ncclGetUniqueId");
}

NcclResult ncclCommInitRankConfig(NcclComm* handle, int size, NcclUniqueId id, int rank, NcclConfig* config) {
  if (const NcclResult result = called("ncclCommInitRankConfig"); result != kNcclSuccess) {
    return result;
  }
  if (config->magic != 0xcafebeef || config->size < 24 || config->blocking != 0 || size > fake::kRanks) {
    return kNcclInvalidArgument;
  }
  auto* comm = new Comm;
  comm->rank = rank;
  comm->size = size;
  comm->device = fake::current_device;
  comm->shared = fake::open_shared(id);
  comm->polls = fake::setting("init_polls");
  comm->worker = std::thread([comm] { comm->run(); });
  *handle = reinterpret_cast<NcclComm>(comm);
  comm->shared->attached.fetch_add(1, std::memory_order_acq_rel);
  return kNcclInProgress;
}

NcclResult ncclCommGetAsyncError(NcclComm handle, NcclResult* error) {
  auto* comm = reinterpret_cast<Comm*>(handle);
  if (const NcclResult result = called("ncclCommGetAsyncError"); result != kNcclSuccess) {
    return result;
  }
  const std::lock_guard guard(comm->mutex);
  *error = kNcclSuccess;
  const int limit = fake::setting("async_error_after");
  if (limit > 0 && ++comm->polled >= limit) {
    *error = static_cast<NcclResult>(fake::setting("async_error"));
  } else if (comm->shared->attached.load(std::memory_order_acquire) < comm->size) {
    *error = kNcclInProgress;
  } else if (comm->polls > 0) {
    --comm->polls;
    *error = kNcclInProgress;
  } else {
    comm->flush();
  }
  return kNcclSuccess;
}

NcclResult ncclCommFinalize(NcclComm handle) {
  auto* comm = reinterpret_cast<Comm*>(handle);
  const std::lock_guard guard(comm->mutex);
  comm->polls = 2;
  const NcclResult result = called("ncclCommFinalize");
  return result == kNcclSuccess ? kNcclInProgress : result;
}
NcclResult ncclCommDestroy(NcclComm handle) {
  fake::release(reinterpret_cast<Comm*>(handle));
  return called("ncclCommDestroy");
}
NcclResult ncclCommAbort(NcclComm handle) {
  auto* comm = reinterpret_cast<Comm*>(handle);
  comm->aborted.store(true, std::memory_order_release);
  fake::release(comm);
  return called("ncclCommAbort");
}

const char* ncclGetErrorString(NcclResult result) {
  constexpr const char* kTexts[] = {
      "no error",         "unhandled cuda error", "unhandled system error", "internal error",
      "invalid argument", "invalid usage",        "remote process exited",  "in progress"};
  return result >= 0 && result < 8 ? kTexts[result] : "unknown result code";
}
#ifndef FAKE_WITHOUT_LAST_ERROR
const char* ncclGetLastError(NcclComm /*comm*/) { return fake::controls().last_error.c_str(); }
#endif

NcclResult ncclCommCount(NcclComm handle, int* count) {
  *count = reinterpret_cast<Comm*>(handle)->size;
  return called("ncclCommCount");
}
NcclResult ncclCommCuDevice(NcclComm handle, int* device) {
  *device = reinterpret_cast<Comm*>(handle)->device;
  return called("ncclCommCuDevice");
}

NcclResult ncclGroupStart() {
  const NcclResult result = called("ncclGroupStart");
  fake::depth += result == kNcclSuccess ? 1 : 0;
  return result;
}
NcclResult ncclGroupEnd() {
  const NcclResult result = called("ncclGroupEnd");
  if (--fake::depth > 0) {
    return result;
  }
  if (result != kNcclSuccess) {
    fake::grouped.clear();
    fake::group_error = kNcclSuccess;
    return result;
  }
  return fake::end_group();
}

NcclResult ncclRedOpCreatePreMulSum(NcclRedOp* op, void* scalar, NcclDataType type, int, NcclComm handle) {
  auto* comm = reinterpret_cast<Comm*>(handle);
  if (const NcclResult result = called("ncclRedOpCreatePreMulSum"); result != kNcclSuccess) {
    return result;
  }
  double value = 0;
  if (type == kNcclFloat64) {
    std::memcpy(&value, scalar, sizeof value);
  } else if (type == kNcclFloat32) {
    float narrow = 0;
    std::memcpy(&narrow, scalar, sizeof narrow);
    value = narrow;
  } else {
    return kNcclInvalidArgument;
  }
  *op = static_cast<NcclRedOp>(5 + comm->scales.size());
  comm->scales[*op] = value;
  return kNcclSuccess;
}
#ifndef FAKE_WITHOUT_RED_OP_DESTROY
NcclResult ncclRedOpDestroy(NcclRedOp op, NcclComm handle) {
  reinterpret_cast<Comm*>(handle)->scales.erase(op);
  return called("ncclRedOpDestroy");
}
#endif

NcclResult ncclAllReduce(const void* from, void* to, std::size_t count, NcclDataType type, NcclRedOp op, NcclComm comm,
                         void* stream) {
  return fake::enqueue("ncclAllReduce", comm, {Operation::Kind::kAllReduce, from, to, count, type, op, 0, stream});
}
NcclResult ncclReduce(const void* from, void* to, std::size_t count, NcclDataType type, NcclRedOp op, int root,
                      NcclComm comm, void* stream) {
  return fake::enqueue("ncclReduce", comm, {Operation::Kind::kReduce, from, to, count, type, op, root, stream});
}
NcclResult ncclBroadcast(const void* from, void* to, std::size_t count, NcclDataType type, int root, NcclComm comm,
                         void* stream) {
  return fake::enqueue("ncclBroadcast", comm,
                       {Operation::Kind::kBroadcast, from, to, count, type, kNcclSum, root, stream});
}
NcclResult ncclAllGather(const void* from, void* to, std::size_t count, NcclDataType type, NcclComm comm,
                         void* stream) {
  return fake::enqueue("ncclAllGather", comm,
                       {Operation::Kind::kAllGather, from, to, count, type, kNcclSum, 0, stream});
}
NcclResult ncclReduceScatter(const void* from, void* to, std::size_t count, NcclDataType type, NcclRedOp op,
                             NcclComm comm, void* stream) {
  return fake::enqueue("ncclReduceScatter", comm,
                       {Operation::Kind::kReduceScatter, from, to, count, type, op, 0, stream});
}
NcclResult ncclSend(const void* from, std::size_t count, NcclDataType type, int peer, NcclComm comm, void* stream) {
  return fake::enqueue("ncclSend", comm, {Operation::Kind::kSend, from, nullptr, count, type, kNcclSum, peer, stream});
}
NcclResult ncclRecv(void* to, std::size_t count, NcclDataType type, int peer, NcclComm comm, void* stream) {
  return fake::enqueue("ncclRecv", comm, {Operation::Kind::kReceive, nullptr, to, count, type, kNcclSum, peer, stream});
}

}  // extern "C"
