#include "engine/in_flight.h"

#include <algorithm>
#include <cstring>

namespace collectives {
namespace {

void unpack(const std::byte* from, const std::vector<Span>& to) {
  for (const Span& span : to) {
    if (span.bytes > 0) {
      std::memcpy(span.data, from, span.bytes);
    }
    from += span.bytes;
  }
}

}  // namespace

InFlight::InFlight(Engine& engine, const Domain* domain, const Members& members, const CommunicatorOptions& options)
    : engine_(engine),
      domain_(domain),
      own_page_(domain != nullptr ? &domain->control(members.rank()) : nullptr),
      rank_(members.rank()),
      size_(members.size()),
      executor_(options.id, rank_, domain, members.links(), engine.recorder(),
                options.topology.crowded() && domain != nullptr ? engine.memory().get() : nullptr, options.members,
                members.readable()),
      slots_(domain, executor_),
      messages_(options.id, rank_, members.message_links(), engine.recorder()) {
  active_.reserve(kMaxActive + 1);  // a work that fails in the middle is added without an allocation
}

std::vector<std::shared_ptr<Work>> InFlight::pending() const {
  std::vector<std::shared_ptr<Work>> all = active_;
  all.insert(all.end(), queued_.begin(), queued_.end());
  all.insert(all.end(), messages_.active().begin(), messages_.active().end());
  return all;
}

void InFlight::start_queued() {
  while (!queued_.empty() && active_.size() < kMaxActive) {
    Work& work = *queued_.front();
    if (!work.numbered) {
      if (std::ranges::any_of(active_, [](const auto& w) { return w->continues; })) {
        return;
      }
      number_again(work);
      work.numbered = true;
      --held_;
    }
    const auto on_mapped_links = [&](const Work& w) { return domain_ != nullptr && w.plan->schedule.uses_links; };
    const bool links_in_use = on_mapped_links(work) && std::any_of(active_.begin(), active_.end(),
                                                                   [&](const auto& w) { return on_mapped_links(*w); });
    if (links_in_use || !may_start(work)) {
      return;
    }
    start(work);
    active_.push_back(std::move(queued_.front()));
    queued_.pop_front();
  }
}

// Until it is numbered, it counts as the next one.
void InFlight::hold(Work& work) {
  work.record = 0;
  work.state.store(WorkState::kQueued, std::memory_order_relaxed);
  work.sequence = next_sequence_;
  work.numbered = false;
  ++held_;
}

void InFlight::remove_active(const std::shared_ptr<Work>& work) {
  const auto position = std::find(active_.begin(), active_.end(), work);
  if (position != active_.end()) {  // a failure removes all
    active_.erase(position);
  }
}

void InFlight::remove_finished() {
  std::erase_if(active_, [](const auto& work) { return work->finished(); });
}

void InFlight::remove_all() {
  active_.clear();
  queued_.clear();
  held_ = 0;
}

void InFlight::clear(Work& work) {
  executor_.end(work);
  if (work.is_packed && work.plan->problem.has_output(rank_)) {
    unpack(work.result_span.data, work.output_spans);
  }
  if (!work.scaled.empty()) {
    work.scaled = std::vector<std::byte>();  // as large as the input, and the work may be kept
  }
}

void InFlight::publish_completed() {
  std::uint64_t lowest = queued_.empty() || !queued_.front()->numbered ? next_sequence_ : queued_.front()->sequence;
  for (const auto& work : active_) {
    if (!work->finished()) {
      lowest = std::min(lowest, work->sequence);
    }
  }
  publish_completed(lowest);
}

std::vector<int> InFlight::missing(const Work& work) const {
  if (!work.is_message()) {
    return executor_.missing(work);
  }
  return work.message.peer == Message::kAny ? std::vector<int>{} : std::vector<int>{work.message.peer};
}

std::vector<int> InFlight::waits_for(const Work& work) const {
  const Work& blocked = active_.empty() || work.is_message() ? work : *active_.front();
  if (blocked.state.load(std::memory_order_relaxed) == WorkState::kActive) {
    return missing(blocked);
  }
  std::vector<int> ranks;
  if (domain_ == nullptr || queued_.empty()) {
    return ranks;
  }
  // It has not started: some rank has yet to complete what it will overwrite.
  const std::uint64_t needed = slots_.needed_before(*queued_.front());
  for (int r = 0; r < size_; ++r) {
    if (r != rank_ && domain_->has(r) && domain_->control(r).completed.load(std::memory_order_acquire) < needed) {
      ranks.push_back(r);
    }
  }
  return ranks;
}

std::vector<int> InFlight::waits_for_all() const {
  std::vector<int> all;
  for (const auto& work : pending()) {
    const std::vector<int> ranks = waits_for(*work);
    all.insert(all.end(), ranks.begin(), ranks.end());
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace collectives
