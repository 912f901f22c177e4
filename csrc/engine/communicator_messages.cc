// Point-to-point messages, as a communicator drives them.

#include "core/error.h"
#include "engine/communicator.h"
#include "engine/record.h"

namespace collectives {

std::shared_ptr<Work> Communicator::post_message(const Call& call, bool async) {
  refuse_after_fork();
  const std::lock_guard guard(engine_->lock());
  heed_before_call();
  const Message& message = call.message;
  if (message.peer < 0 || message.peer >= size() || message.peer == rank()) {
    throw ArgumentError("rank " + std::to_string(message.peer) + " cannot be the other side of a message of rank " +
                        std::to_string(rank()) + ": the group has ranks 0 to " + std::to_string(size() - 1) +
                        ", and a rank sends nothing to itself");
  }
  if (message.tag < 0 || message.tag > kMaxTag) {
    throw ArgumentError("tag " + std::to_string(message.tag) + " is out of range: 0 to " + std::to_string(kMaxTag));
  }
  static const auto plan = [] {
    auto empty = std::make_shared<Plan>();
    empty->problem.collective = Collective::kMessage;
    return empty;
  }();
  auto work = std::make_shared<Work>();
  work->plan = plan;
  work->message = message;
  work->input_spans = work->output_spans = message.sending ? call.input : call.output;
  std::int64_t bytes = 0;
  for (const Span& span : work->input_spans) {
    work->counts.push_back(span.bytes / static_cast<std::int64_t>(size_of(call.dtype)));
    bytes += span.bytes;
  }
  work->input = work->output = {work->input_spans.data(), static_cast<std::int64_t>(work->input_spans.size()), bytes};
  if (call.by_nccl) {
    work->counts = call.lengths;
  }
  work->signature = make_signature(Collective::kMessage, Op::kSum, call.dtype, MemoryKind::kPrivate, false,
                                   call.by_nccl ? kByNccl : 0, 0, work->counts);
  work->timeout_s = call.timeout_s >= 0 ? call.timeout_s : options_.timeout_s;
  work->name = call.name;
  if (async) {
    engine_->need_progress_thread();
  }
  try {
    record_posted(engine_->recorder(), *work, options_.id);
    messages_->start(work);
    engine_->recorder().waits(*work);
    drive();
    // A short message waits for nobody, so here is where its sender hears that another rank has failed; it fails then,
    // although it may have gone.
    engine_->hear_links();
    hear_reports();
    if (heard_ != nullptr && error_ == nullptr) {
      fail(*heard_);
    }
    if (error_ != nullptr && work->error == nullptr) {
      work->state.store(WorkState::kQueued, std::memory_order_relaxed);  // nobody else knows it yet
      finish(*work, *error_);
    }
  } catch (...) {
    fail_by_exception();
    throw;
  }
  watch(*work);
  engine_->wake_waiters();
  if (async && !work->finished()) {
    engine_->wake_progress_thread();
  }
  return work;
}

bool Communicator::withdraw(Work& work) {
  const std::lock_guard guard(engine_->lock());
  if (!work.finished() && work.streams[0]->peer_seen) {
    return false;
  }
  Report report;
  report.kind = ErrorKind::kClosed;
  report.reporter = rank();
  report.culprit = rank();
  report.text = who(rank()) + " closed the communicator before this message came";
  finish(work, report);
  return true;
}

bool Communicator::drive_messages() {
  bool moved = messages_->progress();
  while (const std::shared_ptr<Work> work = messages_->next_changed()) {
    moved = step_message(work) || moved;
  }
  return moved;
}

// True when the work is finished.
bool Communicator::step_message(const std::shared_ptr<Work>& work) {
  switch (Messages::look(*work)) {
    case Progress::kDone:
      messages_->end(*work);
      engine_->recorder().done(*work);
      work->state.store(WorkState::kDone, std::memory_order_release);
      engine_->note_finished();
      return true;
    case Progress::kMismatch:
      mismatch(*work, work->message.peer, Signature(work->streams[0]->peer_signature));
      return true;
    case Progress::kBlocked:
      return false;
  }
  return false;
}

}  // namespace collectives
