// The effect of steps on memory.
#include <algorithm>
#include <utility>

#include "memory/domain.h"
#include "verify/machine.h"

namespace collectives::verification {
Actor Machine::actor(int r) const {
  const Rank& rank = ranks_[static_cast<std::size_t>(r)];
  return {r, rank.call, static_cast<int>(rank.step), &rank.clock};
}

Machine::Place Machine::place(int r, const Operand& operand) {
  Rank& rank = ranks_[static_cast<std::size_t>(r)];
  const std::int64_t offset = operand.offset + rank.iteration * operand.stride;
  const auto user = [&](int owner, int which) {
    const std::int64_t begin = options_.in_place ? in_place_offset(owner, which) : 0;
    return Place{&ranks_[static_cast<std::size_t>(owner)].user[options_.in_place ? 0 : which], begin + offset};
  };
  switch (operand.region) {
    case Region::kInput:
      return user(r, 0);
    case Region::kOutput:
      return user(r, 1);
    case Region::kPeerInput:
      return user(operand.member, 0);
    case Region::kPeerOutput:
      return user(operand.member, 1);
    case Region::kScratch:
      return {&rank.scratch, offset};
    case Region::kBox: {
      const std::int64_t slots = options_.limits.slots;
      const std::int64_t chunk = rank.base + operand.chunk + rank.iteration;
      return {&boxes_[static_cast<std::size_t>(operand.owner(chunk, slots) * slots + chunk % slots)], offset};
    }
    case Region::kInline:
      break;
  }
  return {&inlines_[static_cast<std::size_t>(operand.member * kHeaderLines + rank.call % kHeaderLines)], offset};
}

Machine::Place Machine::target(int r, const Operand& operand) {
  const Place to = place(r, operand);
  if (to.memory->read_only != nullptr) {
    throw Violation{to.memory->read_only};
  }
  return to;
}

Data Machine::load(int r, const Operand& operand, std::int64_t bytes, int background, bool count) {
  const Place from = place(r, operand);
  std::vector<std::int64_t> moved(count ? static_cast<std::size_t>(n_) : 0, 0);
  Data data = from.memory->read(actor(r), from.offset, bytes, background, count ? &moved : nullptr);
  for (std::size_t w = 0; w < moved.size(); ++w) {
    verdict_.link_bytes[w][static_cast<std::size_t>(r)] += moved[w];
  }
  if (operand.take) {
    from.memory->write(actor(r), from.offset,
                       data);  // the same values again, but a write to all who could race with it
  }
  return data;
}

void Machine::count_step(int r, StepKind kind) {
  const auto i = static_cast<std::size_t>(r);
  if (ranks_[i].call != 0) {
    return;
  }
  const bool receives = kind == StepKind::kReceive || kind == StepKind::kReceiveReduce;
  verdict_.sends[i] += kind == StepKind::kSend ? 1 : 0;
  verdict_.receives[i] += receives ? 1 : 0;
  verdict_.reductions[i] += kind == StepKind::kReduce || kind == StepKind::kReceiveReduce ? 1 : 0;
  const bool copies = kind == StepKind::kCopy || kind == StepKind::kRead;
  verdict_.steps[i] += receives || copies || kind == StepKind::kSend || kind == StepKind::kReduce;
}

void Machine::execute(int r, const Step& step) {
  count_step(r, step.kind);
  switch (step.kind) {
    case StepKind::kCopy:
    case StepKind::kRead:
      return copy(r, step);
    case StepKind::kReduce:
      return reduce(r, step);
    case StepKind::kSend:
      return send(r, step);
    case StepKind::kReceive:
    case StepKind::kReceiveReduce:
      return receive(r, step);
    case StepKind::kAwait:
      return await(r);
    case StepKind::kFlush:
      return flush(r);
    default:
      return;
  }
}

void Machine::copy(int r, const Step& step) {
  if (step.length == 0) {
    return;
  }
  const Schedule& schedule = schedules_[static_cast<std::size_t>(r)];
  const Operand& source = schedule.sources(step)[0];
  const Place from = place(r, source);
  std::vector<Place> destinations;
  for (const Operand& operand : schedule.destinations(step)) {
    const Place to = place(r, operand);
    if (to.memory == from.memory && to.offset == from.offset) {
      continue;  // a copy onto itself, as in place: the executor leaves the memory alone
    }
    destinations.push_back(target(r, operand));
    if (to.memory == from.memory && overlap(to.offset, from.offset, step.length)) {
      throw Violation{"copies between ranges that overlap"};
    }
  }
  if (destinations.empty()) {
    return;
  }
  const Data data = load(r, source, step.length, -1, ranks_[static_cast<std::size_t>(r)].call == 0);
  for (const Place& to : destinations) {
    to.memory->write(actor(r), to.offset, data);
  }
}

// Joins the pieces of all sources at all their borders.
Data Machine::combine(const std::vector<Data>& sources, bool finish) {
  Data result;
  std::vector<std::size_t> at(sources.size(), 0);
  std::vector<ValueId> operands(sources.size());
  const std::int64_t bytes = sources[0].back().end;
  for (std::int64_t begin = 0; begin < bytes;) {
    std::int64_t end = bytes;
    int hops = 0;
    for (std::size_t s = 0; s < sources.size(); ++s) {
      const Piece* piece = &sources[s][at[s]];
      if (piece->end <= begin) {
        piece = &sources[s][++at[s]];
      }
      if (piece->shift != sources[0][at[0]].shift) {
        throw Violation{"combines different elements (shifted by " +
                        std::to_string(piece->shift - sources[0][at[0]].shift) + " bytes)"};
      }
      operands[s] = piece->value;
      end = std::min(end, piece->end);
      hops = std::max(hops, piece->hops);
    }
    result.push_back({begin, end, values_.reduce(operands, finish), sources[0][at[0]].shift, hops});
    begin = end;
  }
  return result;
}

void Machine::reduce(int r, const Step& step) {
  if (step.length == 0) {
    return;
  }
  const Schedule& schedule = schedules_[static_cast<std::size_t>(r)];
  std::vector<Place> places;
  std::vector<Data> sources;
  for (const Operand& operand : schedule.sources(step)) {
    places.push_back(place(r, operand));
    sources.push_back(load(r, operand, step.length, -1, ranks_[static_cast<std::size_t>(r)].call == 0));
  }
  const Data data = combine(sources, step.finish);
  for (const Operand& operand : schedule.destinations(step)) {
    const Place to = target(r, operand);
    for (const Place& from : places) {
      if (to.memory == from.memory && to.offset != from.offset && overlap(to.offset, from.offset, step.length)) {
        throw Violation{"reduces between ranges that overlap"};
      }
    }
    to.memory->write(actor(r), to.offset, data);
  }
}

}  // namespace collectives::verification
