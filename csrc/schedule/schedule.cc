#include "schedule/schedule.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace collectives {
namespace {

// Memory of two purposes never shares a cache line.
constexpr std::int64_t kLine = 64;

std::int64_t round_up(std::int64_t bytes, std::int64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Loop marks are read by the executor's loop logic and carry no waits or signals.
bool is_mark(StepKind kind) { return kind == StepKind::kLoop || kind == StepKind::kEndLoop; }

bool is_message(StepKind kind) {
  return kind == StepKind::kSend || kind == StepKind::kReceive || kind == StepKind::kReceiveReduce;
}

bool names_member(Region region) {
  return region == Region::kBounce || region == Region::kInline || region == Region::kPeerInput ||
         region == Region::kPeerOutput;
}

}  // namespace

Step& ScheduleBuilder::append(StepKind kind, std::int64_t bytes) {
  if (is_mark(kind) && !pending_waits_.empty()) {
    append(StepKind::kSync, 0);  // a wait stays on its side of the mark
  }
  Step step;
  step.kind = kind;
  step.length = bytes;
  if (!pending_waits_.empty()) {
    step.waits = {static_cast<std::uint32_t>(schedule_.flags.size()),
                  static_cast<std::uint32_t>(pending_waits_.size())};
    schedule_.flags.insert(schedule_.flags.end(), pending_waits_.begin(), pending_waits_.end());
    pending_waits_.clear();
  }
  schedule_.steps.push_back(step);
  return schedule_.steps.back();
}

Range ScheduleBuilder::put(const std::vector<Operand>& operands) {
  const Range range{static_cast<std::uint32_t>(schedule_.operands.size()), static_cast<std::uint32_t>(operands.size())};
  schedule_.operands.insert(schedule_.operands.end(), operands.begin(), operands.end());
  schedule_.swaps_buffers =
      schedule_.swaps_buffers || std::ranges::any_of(operands, [](const Operand& o) { return o.swaps_buffers(); });
  return range;
}

Limits Limits::of(int size) {
  constexpr std::int64_t kPart = 32 << 10;
  constexpr std::int64_t kMost = 2 << 20;
  Limits limits;
  limits.slot_bytes = std::clamp(size * kPart, kSlotBytes, kMost);
  return limits;
}

ScheduleBuilder& ScheduleBuilder::copy(Operand source, const std::vector<Operand>& destinations, std::int64_t bytes) {
  Step& step = append(StepKind::kCopy, bytes);
  step.sources = put({source});
  step.destinations = put(destinations);
  return *this;
}

ScheduleBuilder& ScheduleBuilder::reduce(const std::vector<Operand>& sources, const std::vector<Operand>& destinations,
                                         std::int64_t bytes, bool finish) {
  Step& step = append(StepKind::kReduce, bytes);
  step.finish = finish;
  step.sources = put(sources);
  step.destinations = put(destinations);
  return *this;
}

ScheduleBuilder& ScheduleBuilder::send(int peer, Operand source, std::int64_t bytes) {
  Step& step = append(StepKind::kSend, bytes);
  step.peer = static_cast<std::uint16_t>(peer);
  step.sources = put({source});
  schedule_.uses_links = true;
  return *this;
}

ScheduleBuilder& ScheduleBuilder::receive(int peer, Operand destination, std::int64_t bytes) {
  Step& step = append(StepKind::kReceive, bytes);
  step.peer = static_cast<std::uint16_t>(peer);
  step.destinations = put({destination});
  schedule_.uses_links = true;
  return *this;
}

ScheduleBuilder& ScheduleBuilder::receive_reduce(int peer, Operand source, Operand destination, std::int64_t bytes,
                                                 bool finish, bool own_first) {
  Step& step = append(StepKind::kReceiveReduce, bytes);
  step.finish = finish;
  step.own_first = own_first;
  step.peer = static_cast<std::uint16_t>(peer);
  step.sources = put({source});
  step.destinations = put({destination});
  schedule_.uses_links = true;
  return *this;
}

ScheduleBuilder& ScheduleBuilder::send_token(int peer) {
  append(StepKind::kSend, 0).peer = static_cast<std::uint16_t>(peer);
  schedule_.uses_links = true;
  return *this;
}

ScheduleBuilder& ScheduleBuilder::receive_token(int peer) {
  append(StepKind::kReceive, 0).peer = static_cast<std::uint16_t>(peer);
  schedule_.uses_links = true;
  return *this;
}

ScheduleBuilder& ScheduleBuilder::await() {
  append(StepKind::kAwait, 0);
  return *this;
}

ScheduleBuilder& ScheduleBuilder::flush() {
  append(StepKind::kFlush, 0);
  return *this;
}

ScheduleBuilder& ScheduleBuilder::read(Operand source, Operand destination, std::int64_t bytes) {
  Step& step = append(StepKind::kRead, bytes);
  step.sources = put({source});
  step.destinations = put({destination});
  return *this;
}

ScheduleBuilder& ScheduleBuilder::choose(const std::vector<FlagRef>& headers) {
  assert(!schedule_.chooses);
  schedule_.chooses = true;
  wait(headers).append(StepKind::kChoose, 0);
  choice_ = schedule_.steps.size() - 1;
  first_of_run_ = schedule_.steps.size();
  return *this;
}

ScheduleBuilder& ScheduleBuilder::otherwise() {
  assert(schedule_.chooses);
  if (!pending_waits_.empty()) {
    append(StepKind::kSync, 0);
  }
  first_of_run_ = schedule_.steps.size();
  schedule_.steps[choice_].length = static_cast<std::int64_t>(first_of_run_);
  return *this;
}

ScheduleBuilder& ScheduleBuilder::wait(std::vector<FlagRef> flags) {
  pending_waits_.insert(pending_waits_.end(), flags.begin(), flags.end());
  return *this;
}

ScheduleBuilder& ScheduleBuilder::signal(int self, std::uint8_t flag, std::int32_t chunk) {
  // A signal never overtakes a wait that was asked for before it.
  if (schedule_.steps.size() <= first_of_run_ || is_mark(schedule_.steps.back().kind) || !pending_waits_.empty()) {
    append(StepKind::kSync, 0);
  }
  Range& signals = schedule_.steps.back().signals;
  std::vector<FlagRef>& flags = schedule_.flags;
  if (signals.begin + signals.count != flags.size()) {  // not at the end of the pool: move there, so that it can grow
    const auto begin = static_cast<std::uint32_t>(flags.size());
    for (std::uint32_t i = 0; i < signals.count; ++i) {
      flags.push_back(FlagRef(flags[signals.begin + i]));
    }
    signals.begin = begin;
  }
  flags.push_back({flag, static_cast<std::uint16_t>(self), chunk});
  ++signals.count;
  return *this;
}

ScheduleBuilder& ScheduleBuilder::for_chunks(std::int64_t bytes, std::int64_t chunk_bytes, int unrolled,
                                             const std::function<void(const Chunk&)>& body, int unrolled_last) {
  assert(chunk_bytes > 0);
  const std::int64_t total = std::max<std::int64_t>(1, (bytes + chunk_bytes - 1) / chunk_bytes);
  const std::int64_t full = std::min(bytes / chunk_bytes, total - unrolled_last);
  // Chunks are numbered on from those of schedules that were appended before, so that no slot is promised twice.
  const std::int64_t first = schedule_.chunks;
  schedule_.chunks = first + total;
  const auto single = [&](std::int64_t k) {
    const std::int64_t offset = k * chunk_bytes;
    body({static_cast<std::int32_t>(first + k), offset, std::min(chunk_bytes, bytes - offset), 0});
  };
  std::int64_t k = 0;
  for (; k < total && k < unrolled; ++k) {
    single(k);
  }
  if (full - k >= 2) {
    append(StepKind::kLoop, full - k);
    body({static_cast<std::int32_t>(first + k), k * chunk_bytes, chunk_bytes, chunk_bytes});
    append(StepKind::kEndLoop, 0);
    k = full;
  }
  for (; k < total; ++k) {
    single(k);
  }
  return *this;
}

ScheduleBuilder& ScheduleBuilder::for_chunks_in_stages(std::int64_t bytes, std::int64_t chunk_bytes,
                                                       const std::vector<Stage>& stages) {
  assert(chunk_bytes > 0 && !stages.empty());
  assert(std::all_of(stages.begin(), stages.end(), [](const Stage& stage) { return stage.lag >= 0; }));
  const std::int64_t total = std::max<std::int64_t>(1, (bytes + chunk_bytes - 1) / chunk_bytes);
  const std::int64_t full = bytes / chunk_bytes;
  const std::int64_t depth = 1 + std::max_element(stages.begin(), stages.end(), [](const Stage& a, const Stage& b) {
                                   return a.lag < b.lag;
                                 })->lag;
  const std::int64_t first = schedule_.chunks;
  schedule_.chunks = first + total;
  const auto round = [&](std::int64_t k, std::int64_t stride) {
    for (const Stage& stage : stages) {
      const std::int64_t chunk = k - stage.lag;
      if (chunk >= 0 && chunk < total) {
        const std::int64_t offset = chunk * chunk_bytes;
        stage.work({static_cast<std::int32_t>(first + chunk), offset, std::min(chunk_bytes, bytes - offset), stride});
      }
    }
  };
  std::int64_t k = 0;
  // Chunk 0 may differ from the others, for it comes with the header.
  for (; k < depth; ++k) {
    round(k, 0);
  }
  if (full - k >= 2) {
    append(StepKind::kLoop, full - k);
    round(k, chunk_bytes);
    append(StepKind::kEndLoop, 0);
    k = full;
  }
  for (; k < total + depth - 1; ++k) {
    round(k, 0);
  }
  return *this;
}

ScheduleBuilder& ScheduleBuilder::pack_slots(std::int64_t bytes) {
  assert(bytes > 0 && bytes % kLine == 0);
  schedule_.slot_pitch = bytes;
  return *this;
}

std::int64_t ScheduleBuilder::scratch(std::int64_t bytes) {
  const std::int64_t offset = round_up(schedule_.scratch_bytes, kLine);
  schedule_.scratch_bytes = offset + bytes;
  return offset;
}

ScheduleBuilder& ScheduleBuilder::over(const std::vector<int>& members, const Schedule& schedule) {
  assert(!schedule.chooses);
  if (!pending_waits_.empty() && !schedule.steps.empty()) {
    append(StepKind::kSync, 0);
  }
  const auto operand_shift = static_cast<std::uint32_t>(schedule_.operands.size());
  const auto flag_shift = static_cast<std::uint32_t>(schedule_.flags.size());
  const auto chunk_shift = static_cast<std::int32_t>(schedule_.chunks);
  const std::int64_t scratch_shift = schedule.scratch_bytes > 0 ? scratch(schedule.scratch_bytes) : 0;
  const auto rank_of = [&](std::uint16_t member) { return static_cast<std::uint16_t>(members.at(member)); };
  const auto shift = [](Range& range, std::uint32_t by) { range.begin += range.count > 0 ? by : 0; };

  for (Operand operand : schedule.operands) {
    if (names_member(operand.region)) {
      operand.member = rank_of(operand.member);
    }
    if (operand.swaps_buffers()) {
      operand.partner = rank_of(operand.partner);
    }
    if (operand.region == Region::kScratch) {
      operand.offset += scratch_shift;
    } else if (operand.region == Region::kBounce) {
      operand.chunk += chunk_shift;
    }
    schedule_.operands.push_back(operand);
  }
  for (FlagRef flag : schedule.flags) {
    flag.member = rank_of(flag.member);
    // The header line belongs to the whole collective, not to a chunk.
    flag.chunk += flag.flag == kHeaderFlag ? 0 : chunk_shift;
    schedule_.flags.push_back(flag);
  }
  for (Step step : schedule.steps) {
    if (is_message(step.kind)) {
      step.peer = rank_of(step.peer);
    }
    shift(step.waits, flag_shift);
    shift(step.signals, flag_shift);
    shift(step.sources, operand_shift);
    shift(step.destinations, operand_shift);
    schedule_.steps.push_back(step);
  }
  schedule_.chunks += schedule.chunks;
  schedule_.uses_links = schedule_.uses_links || schedule.uses_links;
  schedule_.swaps_buffers = schedule_.swaps_buffers || schedule.swaps_buffers;
  return *this;
}

Schedule ScheduleBuilder::build() {
  if (!pending_waits_.empty()) {
    append(StepKind::kSync, 0);
  }
  first_of_run_ = 0;
  return std::exchange(schedule_, {});
}

Schedule ScheduleBuilder::build_messages() {
  schedule_.chunks = 0;
  return build();
}

std::vector<FlagRef> flags_of_others(int me, int size, std::uint8_t flag, std::int32_t chunk) {
  std::vector<FlagRef> flags;
  for (int r = 0; r < size; ++r) {
    if (r != me) {
      flags.push_back({flag, static_cast<std::uint16_t>(r), chunk});
    }
  }
  return flags;
}

Operand input(std::int64_t offset, std::int64_t stride) { return {Region::kInput, 0, 0, offset, stride}; }
Operand output(std::int64_t offset, std::int64_t stride) { return {Region::kOutput, 0, 0, offset, stride}; }
Operand scratch_at(std::int64_t offset, std::int64_t stride) { return {Region::kScratch, 0, 0, offset, stride}; }
Operand bounce(int member, std::int32_t chunk, std::int64_t offset) {
  return {Region::kBounce, static_cast<std::uint16_t>(member), chunk, offset, 0};
}
Operand owned(Operand operand) {
  operand.own = true;
  return operand;
}
Operand swapped(Operand operand, int partner) {
  operand.partner = static_cast<std::uint16_t>(partner);
  return operand;
}
Operand inline_payload(int member) { return {Region::kInline, static_cast<std::uint16_t>(member), 0, 0, 0}; }
Operand peer_input(int member, std::int64_t offset, std::int64_t stride) {
  return {Region::kPeerInput, static_cast<std::uint16_t>(member), 0, offset, stride};
}
Operand peer_output(int member, std::int64_t offset, std::int64_t stride) {
  return {Region::kPeerOutput, static_cast<std::uint16_t>(member), 0, offset, stride};
}

Part part_of(std::int64_t bytes, std::int64_t element, int parts, int index) {
  const std::int64_t unit = bytes >= kLine * parts ? kLine : element;
  const std::int64_t units = bytes / unit;
  const auto border = [&](int i) { return i == parts ? bytes : units * i / parts * unit; };
  return {border(index), border(index + 1) - border(index)};
}

}  // namespace collectives
