// The steps of the device executor that touch data.
#include <algorithm>
#include <string>

#include "core/error.h"
#include "device/executor.h"

namespace collectives {

void DeviceExecutor::Place::advance(std::int64_t bytes) {
  if (flat != nullptr) {
    flat += bytes;
  } else {
    cursor.advance(bytes);
  }
}

DeviceExecutor::Place DeviceExecutor::place(int r, const Operand& operand) const {
  const std::int64_t iteration = ranks_[r].iteration;
  const std::int64_t offset = operand.offset + operand.stride * iteration;
  const auto of_caller = [&](int owner, const std::vector<std::vector<Span>>& arrays) {
    const std::vector<Span>& spans = arrays[owner];
    Place result;
    result.rank = owner;
    result.cursor = SpanCursor({spans.data(), static_cast<std::int64_t>(spans.size()), 0});
    result.cursor.seek(offset);
    return result;
  };
  switch (operand.region) {
    case Region::kInput:
      return of_caller(r, memory_.inputs);
    case Region::kOutput:
      return of_caller(r, memory_.outputs);
    case Region::kPeerInput:
      return of_caller(operand.member, memory_.inputs);
    case Region::kPeerOutput:
      return of_caller(operand.member, memory_.outputs);
    case Region::kScratch:
      return {r, memory_.scratch[r] + offset, {}};
    case Region::kBounce: {
      const std::int64_t slot = (operand.chunk + iteration) % plan_.limits.slots;
      return {operand.member, memory_.bounce[operand.member] + slot * plan_.slot_bytes + offset, {}};
    }
    case Region::kInline:  // holds nothing: Limits::inline_bytes is 0
      break;
  }
  return {};
}

void DeviceExecutor::move(int r, const Step& step) {
  if (step.length == 0) {
    return;
  }
  sources_.clear();
  destinations_.clear();
  for (const Operand& operand : plan_.schedules[r].sources(step)) {
    sources_.push_back(place(r, operand));
  }
  for (const Operand& operand : plan_.schedules[r].destinations(step)) {
    destinations_.push_back(place(r, operand));
  }
  move_all(r, step.kind == StepKind::kReduce, step.length, step.finish);
}

// From sources_ to destinations_, in pieces in which each of them is contiguous.
void DeviceExecutor::move_all(int r, bool reduces, std::int64_t bytes, bool finish) {
  current_.use(team_.stream(r).device);
  ranks_[r].moved = true;
  for (std::int64_t done = 0; done < bytes;) {
    std::int64_t size = bytes - done;
    for (const auto* places : {&sources_, &destinations_}) {
      for (const Place& place : *places) {
        size = place.piece(size).bytes;
      }
    }
    if (reduces) {
      reduce(r, size, finish);
    } else {
      for (const Place& destination : destinations_) {
        copy(r, destination.piece(size).data, sources_[0].piece(size).data, size);
      }
    }
    for (auto* places : {&sources_, &destinations_}) {
      for (Place& place : *places) {
        place.advance(size);
      }
    }
    done += size;
  }
}

void DeviceExecutor::copy(int r, std::byte* destination, const std::byte* source, std::int64_t bytes) {
  if (destination != source) {
    check_device(api_.copy(destination, source, bytes, team_.stream(r).stream), "copying between devices");
  }
}

// What the kernels of this rank's device cannot access is copied to its staging memory and back.
void DeviceExecutor::reduce(int r, std::int64_t bytes, bool finish) {
  if (sources_.size() > kMostDeviceOperands || destinations_.size() > kMostDeviceOperands) {
    throw ArgumentError("a step combines " + std::to_string(sources_.size()) + " arrays; on devices at most " +
                        std::to_string(kMostDeviceOperands) + " are possible: take another algorithm");
  }
  std::byte* staging = memory_.staging[r];
  const auto near = [&](const Place& place) {
    if (team_.accessible(r, place.rank)) {
      return place.piece(bytes).data;
    }
    std::byte* const here = staging;
    staging += aligned(bytes);
    return here;
  };
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    std::byte* const from = near(sources_[i]);
    copy(r, from, sources_[i].piece(bytes).data, bytes);
    reduction_.sources[i] = from;
  }
  for (std::size_t d = 0; d < destinations_.size(); ++d) {
    reduction_.destinations[d] = near(destinations_[d]);
  }
  reduction_.source_count = static_cast<int>(sources_.size());
  reduction_.destination_count = static_cast<int>(destinations_.size());
  reduction_.count = bytes / problem_.element();
  reduction_.finish = finish;
  check_device(api_.reduce(&reduction_, team_.stream(r).stream), "starting a reduction on a device");
  for (std::size_t d = 0; d < destinations_.size(); ++d) {
    copy(r, destinations_[d].piece(bytes).data, static_cast<std::byte*>(reduction_.destinations[d]), bytes);
  }
}

}  // namespace collectives
