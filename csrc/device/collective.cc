#include "device/collective.h"

#include <memory>
#include <mutex>
#include <utility>

#include "core/buffer.h"
#include "core/error.h"
#include "device/executor.h"
#include "device/pinned.h"
#include "device/team.h"
#include "reduce/reducer.h"

namespace collectives {
namespace {

void check(const Problem& problem, std::span<const DeviceRank> ranks) {
  const int n = static_cast<int>(ranks.size());
  if (n == 0 || problem.root < 0 || problem.root >= n) {
    throw ArgumentError(std::to_string(n) + " ranks and root " + std::to_string(problem.root));
  }
  if (reduces(problem.collective) && (!has_kernel(problem.op, problem.dtype) || problem.op == Op::kPremulSum)) {
    throw ArgumentTypeError(std::string(name(problem.op)) + " of " + std::string(name(problem.dtype)) +
                            " has no meaning for replicas");
  }
  for (int r = 0; r < n; ++r) {
    const std::pair<const char*, std::pair<std::int64_t, std::int64_t>> sides[] = {
        {"input", {Buffer::of(ranks[r].input).bytes, problem.input_bytes(r, n)}},
        {"output", {Buffer::of(ranks[r].output).bytes, problem.output_bytes(r, n)}}};
    for (const auto& [side, bytes] : sides) {
      if (bytes.first != bytes.second) {
        throw ArgumentError("the " + std::string(side) + " of rank " + std::to_string(r) + " has " +
                            std::to_string(bytes.first) + " bytes, not " + std::to_string(bytes.second));
      }
    }
  }
}

// One call: puts its work into the streams, behind what they hold before and ahead of what comes into them later.
class Call {
 public:
  Call(DeviceTeam& team, std::span<const DeviceRank> ranks) : team_(team), ranks_(ranks) {}

  void run(const Problem& problem, const DevicePlan& plan, std::span<const DeviceCopy> copies) {
    for (int r = 0; r < team_.size(); ++r) {
      if (team_.used) {
        wait_for(current_, team_.stream(r), team_.done());
      }
      wait_for(current_, team_.stream(r), record_event(events_, current_, ranks_[r].stream));
    }
    const DeviceExecutor::Memory memory = memory_for(plan);
    DeviceExecutor(team_, plan, problem, memory, events_, current_).run();
    for (const DeviceCopy& copy : copies) {
      check_device(device_api().copy(copy.destination, copy.source, copy.bytes, team_.stream(copy.rank).stream),
                   "copying between arrays on a device");
    }
  }

  // Has the callers' streams wait for all ranks, which may read and write the arrays of others.
  void make_callers_wait() {
    const DeviceStream first = team_.stream(0);
    for (int r = 1; r < team_.size(); ++r) {
      wait_for(current_, first, record_event(events_, current_, team_.stream(r)));
    }
    current_.use(first.device);
    check_device(device_api().event_record(team_.done(), first.stream), "recording an event");
    team_.used = true;
    for (const DeviceRank& rank : ranks_) {
      wait_for(current_, rank.stream, team_.done());
    }
  }

 private:
  // One allocation for each rank, cut into what the schedule needs.
  DeviceExecutor::Memory memory_for(const DevicePlan& plan) {
    DeviceExecutor::Memory memory;
    for (int r = 0; r < team_.size(); ++r) {
      const std::int64_t bounce = plan.slot_bytes * plan.limits.slots;
      const std::int64_t scratch = aligned(plan.schedules[r].scratch_bytes);
      std::int64_t bytes = bounce + scratch + plan.staging_bytes[r];
      for (const Span& span : ranks_[r].output) {
        bytes += span.data == nullptr ? aligned(span.bytes) : 0;
      }
      std::byte* at = bytes > 0 ? team_.memory(r, bytes) : nullptr;
      const auto next = [&](std::int64_t size) { return at == nullptr ? nullptr : std::exchange(at, at + size); };
      memory.bounce.push_back(next(bounce));
      memory.scratch.push_back(next(scratch));
      memory.staging.push_back(next(plan.staging_bytes[r]));
      memory.inputs.push_back(ranks_[r].input);
      std::vector<Span>& outputs = memory.outputs.emplace_back(ranks_[r].output);
      for (Span& span : outputs) {
        if (span.data == nullptr) {
          span.data = next(aligned(span.bytes));
        }
      }
    }
    return memory;
  }

  DeviceTeam& team_;
  std::span<const DeviceRank> ranks_;
  CurrentDevice current_;
  Events events_;
};

void refuse_capture(CurrentDevice& current, std::span<const DeviceRank> ranks) {
  std::vector<DeviceStream> streams;
  for (const DeviceRank& rank : ranks) {
    streams.push_back(rank.stream);
  }
  if (capturing(current, streams)) {
    throw CollectivesError(ErrorKind::kBackend,
                           "a collective between several devices cannot be recorded into a CUDA graph, since it needs "
                           "memory that would have to belong to the graph; call it outside of the graph, or use NCCL",
                           {});
  }
}

}  // namespace

void run_device_collective(const Problem& problem, const std::string& algorithm, std::span<const DeviceRank> ranks,
                           std::span<const DeviceCopy> copies, std::int64_t chunk_bytes) {
  check(problem, ranks);
  std::vector<int> devices;
  for (const DeviceRank& rank : ranks) {
    devices.push_back(rank.stream.device);
  }
  {
    CurrentDevice current;
    refuse_capture(current, ranks);
  }
  const std::shared_ptr<DeviceTeam> team = team_of(devices);
  const std::lock_guard lock(team->mutex);
  if (team->broken) {
    throw CollectivesError(ErrorKind::kBackend, "an earlier call on these devices has failed meanwhile; call again",
                           {});
  }
  const DevicePlan& plan = team->plan(problem, algorithm, chunk_bytes);
  try {
    Call call(*team, ranks);
    try {
      call.run(problem, plan, copies);
    } catch (...) {
      // Work that is in the streams already still uses the arrays, and callers may release them in stream order.
      try {
        call.make_callers_wait();
      } catch (const CollectivesError&) {  // NOLINT(bugprone-empty-catch): the first error says more
      }
      throw;
    }
    call.make_callers_wait();
    team->release_retired();
  } catch (...) {
    team->broken = true;
    drop_team(team);
    throw;
  }
}

void drop_device_caches() {
  if (device_status().available) {
    drop_teams();
    drop_pinned();
    drop_events();
  }
}

}  // namespace collectives
