// A device team: the streams, events, memory and plans that the ranks of a device collective share. It is kept for the
// next call on the same devices.
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

// As cudaMalloc aligns memory; kernels are fastest so.
inline constexpr std::int64_t kDeviceAlignment = 256;
inline std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

// The schedules of all ranks, and the memory that they need besides the caller's.
struct DevicePlan {
  std::vector<Schedule> schedules;
  Limits limits;
  std::int64_t slot_bytes = 0;                // of each slot of each bounce buffer; 0: no bounce buffers
  std::vector<std::int64_t> staging_bytes{};  // of each rank, for copies of what its device cannot access
};

class DeviceTeam {
 public:
  // devices[r]: of rank r.
  explicit DeviceTeam(const std::vector<int>& devices);
  ~DeviceTeam();
  DeviceTeam(const DeviceTeam&) = delete;
  DeviceTeam& operator=(const DeviceTeam&) = delete;

  // Held by a call from its start until its work is in the streams.
  std::mutex mutex;

  int size() const { return static_cast<int>(members_.size()); }
  DeviceStream stream(int rank) const { return {members_[rank].device, members_[rank].stream}; }
  // Whether kernels of the device of `rank` can access memory of that of `peer`.
  bool accessible(int rank, int peer) const { return accessible_[static_cast<std::size_t>(rank * size() + peer)]; }

  const DevicePlan& plan(Problem problem, const std::string& algorithm, std::int64_t chunk_bytes);

  // Memory of a rank, good for work in the streams of this team until the next call of memory().
  std::byte* memory(int rank, std::int64_t bytes);
  // Releases memory that no stream uses any more, and retires what is too large to keep. At the end of each call.
  void release_retired();

  // The event that each call records at its end, in the stream of rank 0 behind the work of all ranks.
  void* done() const { return done_; }
  bool used = false;    // done() was recorded
  bool broken = false;  // a call failed in the middle

 private:
  struct Member {
    int device = 0;
    void* stream = nullptr;
    void* memory = nullptr;
    std::int64_t bytes = 0;
  };
  // Memory to be released when the event has happened: no work uses it after that.
  struct Retired {
    void* memory = nullptr;
    void* event = nullptr;
  };
  using Key =
      std::tuple<Collective, Op, DType, std::int64_t, int, std::vector<std::int64_t>, std::string, std::int64_t>;

  void retire(Member& member);
  void size_buffers(DevicePlan& plan) const;
  void clear();

  std::vector<Member> members_;
  std::vector<bool> accessible_;
  bool all_accessible_ = true;
  std::vector<Retired> retired_;
  void* done_ = nullptr;
  std::map<Key, DevicePlan> plans_;
};

// The team of these devices, made when it is first asked for.
std::shared_ptr<DeviceTeam> team_of(const std::vector<int>& devices);
// Drops a team that has failed: the next call on its devices gets a new one.
void drop_team(const std::shared_ptr<DeviceTeam>& team);
// Drops all teams.
void drop_teams();

}  // namespace collectives
