#include "engine/unmatched_receives.h"

namespace collectives {
namespace {

bool is_from_any(const Work& work) { return work.message.peer == Message::kAny; }

}  // namespace

Work* UnmatchedReceives::first(int tag) const {
  const auto queue = queues_.find(tag);
  return queue == queues_.end() ? nullptr : queue->second.works.front();
}

void UnmatchedReceives::add(Work& work) {
  Queue& queue = queues_[work.message.tag];
  queue.tag = work.message.tag;
  queue.works.push_back(work);
  from_any_ += is_from_any(work) ? 1 : 0;
}

void UnmatchedReceives::remove(Work& work) noexcept {
  const auto queue = queues_.find(work.message.tag);
  if (queue == queues_.end() || !queue->second.works.has(work)) {
    return;
  }
  from_any_ -= is_from_any(work) ? 1 : 0;
  IntrusiveList<Work, Unmatched>::remove(work);
  freed_.push_back(queue->second);
}

Work* UnmatchedReceives::next_free() {
  while (Queue* const queue = freed_.front()) {
    Work* const first = queue->works.front();
    if (first != nullptr && !is_from_any(*first)) {
      return first;
    }
    IntrusiveList<Queue>::remove(*queue);
    if (first == nullptr) {
      queues_.erase(queue->tag);
    }
  }
  return nullptr;
}

}  // namespace collectives
