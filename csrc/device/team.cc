#include "device/team.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "core/error.h"
#include "core/topology.h"

namespace collectives {
namespace {

constexpr int kSlots = 4;
// The most memory of a rank that is kept. A call that returns no result on some replicas may need more for a while.
constexpr std::int64_t kKeepBytes = 256 << 20;
constexpr std::size_t kKeepPlans = 256;
constexpr std::size_t kKeepTeams = 16;
struct Teams {
  std::mutex mutex;
  std::vector<std::pair<std::vector<int>, std::shared_ptr<DeviceTeam>>> list;  // the latest first
};

Teams& teams() {
  static Teams* const all = new Teams();  // never destroyed: the driver may be gone before static objects are
  return *all;
}

bool of_member(Region region) {
  return region == Region::kBounce || region == Region::kPeerInput || region == Region::kPeerOutput;
}

}  // namespace

DeviceTeam::DeviceTeam(const std::vector<int>& devices) {
  const DeviceApi& api = device_api();
  try {
    std::map<std::pair<int, int>, bool> known;
    for (const int device : devices) {
      for (const int peer : devices) {
        const auto [at, fresh] = known.try_emplace({device, peer}, device == peer);
        if (fresh && device != peer) {
          int yes = 0;
          check_device(api.enable_peer(device, peer, &yes), "asking whether a device can access another's memory");
          at->second = yes != 0;
        }
        accessible_.push_back(at->second);
        all_accessible_ = all_accessible_ && at->second;
      }
    }
    for (const int device : devices) {
      Member& member = members_.emplace_back();
      member.device = device;
      check_device(api.stream_create(device, &member.stream), "making a stream");
    }
    check_device(api.event_create(devices[0], false, &done_), "making an event");
  } catch (...) {
    clear();
    throw;
  }
}

DeviceTeam::~DeviceTeam() { clear(); }

void DeviceTeam::clear() {
  const DeviceApi& api = device_api();
  // First: release() waits for the work that uses the memory, which may be in the streams that are destroyed below.
  for (const Retired& retired : retired_) {
    api.release(retired.memory);
    api.event_destroy(retired.event);
  }
  retired_.clear();
  for (Member& member : members_) {
    if (member.memory != nullptr) {
      api.release(member.memory);
    }
    if (member.stream != nullptr) {
      api.stream_destroy(member.stream);
    }
  }
  members_.clear();
  if (done_ != nullptr) {
    api.event_destroy(done_);
    done_ = nullptr;
  }
}

// Finds out how large slots and staging memory have to be.
void DeviceTeam::size_buffers(DevicePlan& plan) const {
  for (int r = 0; r < size(); ++r) {
    std::int64_t most = 0;
    const Schedule& schedule = plan.schedules[r];
    if (schedule.swaps_buffers) {
      throw std::logic_error("a schedule for devices swaps bounce buffers");
    }
    for (const Step& step : schedule.steps) {
      std::int64_t staged = 0;
      for (const auto& operands : {schedule.sources(step), schedule.destinations(step)}) {
        for (const Operand& operand : operands) {
          if (operand.region == Region::kBounce) {
            plan.slot_bytes = std::max(plan.slot_bytes, aligned(operand.offset + step.length));
          } else if (operand.region == Region::kInline && step.length > 0) {
            throw std::logic_error("a schedule for devices uses header lines");
          }
          staged += of_member(operand.region) && !accessible(r, operand.member) ? aligned(step.length) : 0;
        }
      }
      if (step.kind == StepKind::kReceiveReduce && !accessible(r, step.peer)) {
        staged += aligned(step.length);
      }
      most = std::max(most, staged);
    }
    plan.staging_bytes.push_back(most);
  }
}

const DevicePlan& DeviceTeam::plan(Problem problem, const std::string& algorithm, std::int64_t chunk_bytes) {
  const Key key{problem.collective, problem.op,     problem.dtype, problem.count,
                problem.root,       problem.counts, algorithm,     chunk_bytes};
  if (const auto found = plans_.find(key); found != plans_.end()) {
    return found->second;
  }
  DevicePlan plan;
  plan.limits.slots = kSlots;
  plan.limits.slot_bytes = plan.limits.segment_bytes = plan.limits.most_stage_bytes = chunk_bytes;
  plan.limits.inline_bytes = 0;
  plan.limits.swap_buffers = false;  // a swap of bounce buffers saves cache misses of CPUs, of which devices have none
  problem.memory = MemoryKind::kPrivate;
  // Symmetric memory needs arrays that are alike on all ranks, which vector collectives do not have.
  if (const Algorithm* known = find_algorithm(problem.collective, algorithm);
      known != nullptr && all_accessible_ && !is_vector(problem.collective)) {
    problem.memory = MemoryKind::kSymmetric;
    if (!known->unsupported(problem, one_host(0, size())).empty()) {
      problem.memory = MemoryKind::kPrivate;
    }
  }
  for (int r = 0; r < size(); ++r) {
    plan.schedules.push_back(build_schedule(algorithm, problem, one_host(r, size()), plan.limits));
  }
  size_buffers(plan);
  if (plans_.size() == kKeepPlans) {
    plans_.clear();
  }
  return plans_.emplace(key, std::move(plan)).first->second;
}

std::byte* DeviceTeam::memory(int rank, std::int64_t bytes) {
  Member& member = members_[rank];
  if (member.bytes < bytes) {
    retire(member);
    const std::int64_t size = std::max(bytes, std::min(2 * member.bytes, kKeepBytes));
    if (const int code = device_api().allocate(member.device, size, &member.memory); code != kDeviceOk) {
      member.memory = nullptr;
      device_failed(code, "allocating " + std::to_string(size) + " bytes on device " + std::to_string(member.device));
    }
    member.bytes = size;
  }
  return static_cast<std::byte*>(member.memory);
}

// The event goes into the stream of the rank, behind all work that uses the memory: the rank's own work is there, and
// each call begins with a wait for done(), behind the work of the other ranks.
void DeviceTeam::retire(Member& member) {
  if (member.memory == nullptr) {
    return;
  }
  const DeviceApi& api = device_api();
  CurrentDevice current;
  current.use(member.device);
  retired_.reserve(retired_.size() + 1);
  void* event = nullptr;
  check_device(api.event_create(member.device, false, &event), "making an event");
  retired_.push_back({member.memory, event});
  member.memory = nullptr;
  member.bytes = 0;
  check_device(api.event_record(event, member.stream), "recording an event");
}

void DeviceTeam::release_retired() {
  const DeviceApi& api = device_api();
  std::erase_if(retired_, [&](const Retired& retired) {
    if (api.event_query(retired.event) != kDeviceOk) {
      return false;
    }
    api.release(retired.memory);
    api.event_destroy(retired.event);
    return true;
  });
  CurrentDevice current;
  for (Member& member : members_) {
    if (member.bytes > kKeepBytes) {
      wait_for(current, {member.device, member.stream}, done_);
      retire(member);
    }
  }
}

std::shared_ptr<DeviceTeam> team_of(const std::vector<int>& devices) {
  Teams& all = teams();
  const std::lock_guard lock(all.mutex);
  const auto found = std::find_if(all.list.begin(), all.list.end(), [&](const auto& g) { return g.first == devices; });
  if (found != all.list.end()) {
    std::rotate(all.list.begin(), found, found + 1);
    return all.list[0].second;
  }
  auto team = std::make_shared<DeviceTeam>(devices);
  all.list.emplace(all.list.begin(), devices, team);
  if (all.list.size() > kKeepTeams) {
    all.list.pop_back();
  }
  return team;
}

void drop_team(const std::shared_ptr<DeviceTeam>& team) {
  Teams& all = teams();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.list, [&](const auto& entry) { return entry.second == team; });
}

void drop_teams() {
  Teams& all = teams();
  const std::lock_guard lock(all.mutex);
  all.list.clear();
}

}  // namespace collectives
