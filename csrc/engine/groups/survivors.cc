// The communicator that the survivors of another one make, once they have agreed which ranks they are.

#include <algorithm>
#include <mutex>
#include <utility>

#include "engine/communicator.h"
#include "engine/groups/shrink.h"

namespace collectives {

// The communicator of the survivors, under the lock of the engine but for its own making.
std::unique_ptr<Communicator> Shrinking::make() {
  CommunicatorOptions options = parent_.options();
  std::unique_ptr<Domain> domain;
  {
    const std::lock_guard guard(parent_.engine()->lock());
    std::vector<int> old;
    options.id = agreement_->decision().number;
    options.members.clear();
    for (int m = 0; m < parent_.size(); ++m) {
      if (!agreement_->decision().ranks.has(m)) {
        continue;
      }
      options.members.push_back(parent_.members().world_rank(m));
      old.push_back(m);
    }
    options.topology = parent_.topology().of(old);
    domain = make_domain(old, options);
  }
  return std::make_unique<Communicator>(parent_.engine(), std::move(domain), std::move(options));
}

// The survivors on other hosts make the new communicator, in which they must not wait for this one.
void Shrinking::send_failure(const std::vector<int>& old, int suspect, std::uint32_t number, const std::string& text) {
  const auto place = [&](int m) { return static_cast<int>(std::find(old.begin(), old.end(), m) - old.begin()); };
  Report report;
  report.communicator = number;
  report.reporter = place(parent_.rank());
  report.suspect = place(suspect);
  report.sequence = 0;
  report.text = text;
  for (const int m : old) {
    if (Link* link = parent_.members().process_link(m); link != nullptr) {
      link->send_control(report.encode(kReportBytes));
    }
  }
}

// old: the ranks in the parent of the new members.
std::unique_ptr<Domain> Shrinking::make_domain(const std::vector<int>& old, const CommunicatorOptions& options) {
  const int me = parent_.rank();
  const auto size = static_cast<int>(old.size());
  const auto here = [&](int m) { return m == me || parent_.members().maps(m); };
  const auto mapped = std::count_if(old.begin(), old.end(), here);
  if (mapped <= 1) {
    if (segment_ != nullptr) {
      segment_->cancel();
      segment_.reset();
    }
    return nullptr;
  }
  HostMemory& memory = *parent_.engine()->memory();
  std::vector<Note> notes;
  bool heap = mapped == size;
  for (const int m : old) {
    read_[m] = 0;  // once more
    const std::optional<Note> note = m == me ? agreement_->note() : here(m) ? board(m) : Note(parent_.size());
    if (!note || !note->segment.room) {
      const std::string text =
          "shrink: the memory of " + parent_.members().describe(m) + " has no room for another communicator of " +
          std::to_string(size) +
          " ranks; close groups that are not needed, or raise COLLECTIVES_SYMMETRIC_HEAP on all ranks";
      send_failure(old, m, options.id, text);
      raise(ErrorKind::kGeneric, m, text);
    }
    heap = heap && note->segment.heap;
    notes.push_back(*note);
  }
  const SegmentLayout layout(size, memory.limits(), heap ? memory.group_heap_bytes() : 0);
  std::vector<std::optional<std::size_t>> offsets(size);
  std::vector<HostMemory::Neighbour> others;
  for (int n = 0; n < size; ++n) {
    if (!here(old[n])) {
      continue;
    }
    offsets[n] = notes[n].segment.offset;
    if (!memory.is_segment(options.members[n], *offsets[n], layout.total, notes[n].number)) {
      raise(ErrorKind::kMismatch, old[n],
            "shrink: " + parent_.members().describe(old[n]) + " has no memory at the offset that it has given");
    }
    if (old[n] != me) {
      others.push_back({options.members[n], *offsets[n], notes[n].number});
    }
  }
  memory.shrink(segment_->offset(), layout.total);
  segment_->share(std::move(others));
  return memory.group_domain(options.topology.rank, layout, options.members, offsets, std::move(segment_));
}

}  // namespace collectives
