// What the ranks of a device collective use together, kept for the next call on the same devices.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "device/events.h"
#include "schedule/algorithm.h"

namespace collectives {

// Devices align memory to 256 bytes, and kernels are fastest so.
inline constexpr std::int64_t kDeviceAlignment = 256;
inline std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

// The schedules of all ranks, and the memory that they need besides the caller's.
struct DevicePlan {
  std::vector<Schedule> schedules;
  Limits limits;
  std::int64_t slot_bytes = 0;                // of each slot of each box; 0: no boxes
  std::vector<std::int64_t> staging_bytes{};  // of each rank, for what its device cannot access
};

class Gang {
 public:
  // devices[r]: of rank r.
  explicit Gang(const std::vector<int>& devices);
  ~Gang();
  Gang(const Gang&) = delete;
  Gang& operator=(const Gang&) = delete;

  // One call at a time.
  std::mutex mutex;

  int size() const { return static_cast<int>(members_.size()); }
  DeviceStream stream(int rank) const { return {members_[rank].device, members_[rank].stream}; }
  // Whether kernels of the device of `rank` can access memory of that of `peer`.
  bool accessible(int rank, int peer) const { return accessible_[static_cast<std::size_t>(rank * size() + peer)]; }
  bool all_accessible() const { return all_accessible_; }

  const DevicePlan& plan(Problem problem, const std::string& algorithm, std::int64_t chunk_bytes);

  // Memory of a rank, used in the order of the streams of this gang.
  std::byte* memory(int rank, std::int64_t bytes);
  // Releases memory that is in use no more, or too large to keep. At the end of each call.
  void tidy();

  // Recorded at the end of each call, when the work of all ranks was put into the stream of rank 0.
  void* done() const { return done_; }
  bool used = false;    // `done` was recorded
  bool broken = false;  // a call failed in the middle

 private:
  struct Member {
    int device = 0;
    void* stream = nullptr;
    void* memory = nullptr;
    std::int64_t bytes = 0;
  };
  struct Retired {
    void* memory = nullptr;
    void* event = nullptr;  // when it happens, nobody uses the memory
  };
  using Key =
      std::tuple<Collective, Op, DType, std::int64_t, int, std::vector<std::int64_t>, std::string, std::int64_t>;

  void retire(Member& member);
  void measure(DevicePlan& plan) const;
  void clear();

  std::vector<Member> members_;
  std::vector<bool> accessible_;
  bool all_accessible_ = true;
  std::vector<Retired> retired_;
  void* done_ = nullptr;
  std::map<Key, DevicePlan> plans_;
};

// The gang of these devices.
std::shared_ptr<Gang> gang_of(const std::vector<int>& devices);
// Takes a gang that failed out of the list.
void forget(const std::shared_ptr<Gang>& gang);
void drop_gangs();

}  // namespace collectives
