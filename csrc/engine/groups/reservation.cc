#include "engine/groups/reservation.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "core/error.h"

namespace collectives {

Reservation::Reservation(const Communicator& parent, std::uint32_t number, const std::vector<int>& members)
    : engine_(parent.engine()), options_(parent.options()) {
  options_.id = number;
  options_.members.clear();
  for (const int member : members) {
    options_.members.push_back(parent.members().world_rank(member));
  }
  options_.topology = parent.topology().of(members);
  const int size = options_.topology.size;
  int mapped = 0;
  for (int m = 0; m < size; ++m) {
    mapped += on_this_host(m) ? 1 : 0;
  }
  mapped_ = mapped > 1;
  all_mapped_ = mapped_ && mapped == size;

  const std::lock_guard guard(engine_->lock());
  claimed_ = engine_->claim_number(number);
  if (!claimed_ || !mapped_) {
    return;
  }
  const auto gone = [&](int w) { return engine_->peers()[w].state != Peer::State::kThere; };
  const std::shared_ptr<HostMemory>& memory = engine_->memory();
  std::optional<std::size_t> offset;
  if (all_mapped_) {
    offset = memory->allocate(layout(true).total, layout(true).heap, number, gone);
    reserved_.heap = offset.has_value();
  }
  if (!offset) {
    offset = memory->allocate(layout(false).total, layout(false).heap, number, gone);
  }
  reserved_.room = offset.has_value();
  if (offset) {
    reserved_.offset = *offset;
    segment_ = std::make_shared<GroupSegment>(memory, *offset);
  }
}

Reservation::~Reservation() {
  if (!engine_->forked()) {
    const std::lock_guard guard(engine_->lock());
    if (claimed_) {
      engine_->end_claim(options_.id);
    }
  }
}

void Reservation::cancel() {
  if (segment_ != nullptr) {
    segment_->cancel();
  }
}

SegmentLayout Reservation::layout(bool heap) const {
  const HostMemory& memory = *engine_->memory();
  return SegmentLayout(options_.topology.size, memory.limits(), heap ? memory.group_heap_bytes() : 0);
}

std::unique_ptr<Communicator> Reservation::make(const std::vector<ReservedSegment>& segments) {
  std::unique_ptr<Domain> domain;
  if (mapped_) {
    HostMemory& memory = *engine_->memory();
    const bool heap = std::all_of(segments.begin(), segments.end(), [](const ReservedSegment& s) { return s.heap; });
    const SegmentLayout segment = layout(heap);
    std::vector<std::optional<std::size_t>> offsets(segments.size());
    std::vector<HostMemory::Neighbour> others;
    for (int m = 0; m < static_cast<int>(segments.size()); ++m) {
      if (!on_this_host(m)) {
        continue;
      }
      const int world_rank = options_.members[m];
      offsets[m] = segments[m].offset;
      if (!memory.is_segment(world_rank, *offsets[m], segment.total, options_.id)) {
        throw CollectivesError(ErrorKind::kMismatch,
                               "rank " + std::to_string(m) + " of the new group has no memory at the offset " +
                                   std::to_string(*offsets[m]) + " that it has given",
                               {options_.topology.rank, m, "", -1, "", -1});
      }
      if (m != options_.topology.rank) {
        others.push_back({world_rank, *offsets[m], options_.id});
      }
    }
    memory.shrink(segment_->offset(), segment.total);
    segment_->share(std::move(others));
    domain = memory.group_domain(options_.topology.rank, segment, options_.members, offsets, std::move(segment_));
  }
  return std::make_unique<Communicator>(engine_, std::move(domain), options_);
}

}  // namespace collectives
