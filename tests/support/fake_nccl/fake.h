// A stand-in for libnccl.so.2 and for the table of devices, without devices: memory of devices is that of the host, a
// stream is a number of operations, and each communicator has a thread that does them in their order.
//
// Ranks meet in a file of FAKE_NCCL_DIR that is named by the unique id, so they may be threads or processes. What tests
// ask it to do wrong is in FAKE_NCCL ("stuck=1,init_polls=3"), or comes by fake_set() and fake_fail().
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "nccl/abi.h"

namespace fake {

inline constexpr int kRanks = 8;
inline constexpr std::size_t kSlot = 1 << 20;
inline constexpr std::size_t kPair = 256 << 10;
inline constexpr std::size_t kHead = 64 << 10;
inline constexpr std::size_t kBytes = kHead + kRanks * kSlot + kRanks * kRanks * kPair;

// What ranks share. Counters only rise.
struct Shared {
  std::atomic<int> attached;
  std::atomic<std::uint64_t> published[kRanks];
  std::atomic<std::uint64_t> consumed[kRanks];
  std::atomic<std::uint64_t> sent[kRanks][kRanks];
  std::atomic<std::uint64_t> taken[kRanks][kRanks];
  std::byte* slot(int rank) {
    return reinterpret_cast<std::byte*>(this) + kHead + static_cast<std::size_t>(rank) * kSlot;
  }
  std::byte* pair(int from, int to) {
    return reinterpret_cast<std::byte*>(this) + kHead + kRanks * kSlot +
           static_cast<std::size_t>(from * kRanks + to) * kPair;
  }
};

struct Operation {
  enum class Kind { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter, kSend, kReceive };
  Kind kind;
  const void* from;
  void* to;
  std::size_t count;
  collectives::NcclDataType type;
  collectives::NcclRedOp op;
  int peer;  // or root
  void* stream;
  double scale = 1;
  bool is_message() const { return kind == Kind::kSend || kind == Kind::kReceive; }
};

struct Comm {
  int rank = 0;
  int size = 0;
  int device = 0;
  Shared* shared = nullptr;
  std::thread worker;
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::vector<Operation>> groups;
  std::vector<Operation> deferred;  // not in their streams yet
  std::map<int, double> scales;     // by op
  std::atomic<bool> aborted{false};
  bool leaving = false;
  int polls = 0;
  int polled = 0;
  std::uint64_t sequence = 0;

  void run();
  void flush();
};

// Does the operations of a group; false when the communicator was aborted meanwhile.
bool perform(Comm& comm, const std::vector<Operation>& group);
std::size_t size_of(collectives::NcclDataType type);

// The count of a function's calls, and what it is to return.
collectives::NcclResult called(const char* function);
int setting(const char* name);

// Operations of a stream that have been issued, and that are done.
struct Stream {
  std::uint64_t issued = 0;
  std::uint64_t done = 0;
};
void stream_issued(void* stream);
void stream_done(void* stream);

extern thread_local int current_device;

}  // namespace fake
