#include "engine/driver.h"

#include <exception>

#include "core/float_environment.h"

namespace collectives {

bool Driver::drive() {
  if (driving_) {
    return false;  // a peer was lost in the middle of a step
  }
  driving_ = true;
  const FloatEnvironment own;
  bool moved = true;
  try {
    moved = drive_collectives();
    moved = drive_messages() || moved;
  } catch (const std::exception&) {
    failure_.fail_by_exception();
    moved = true;
  }
  driving_ = false;
  return moved;
}

bool Driver::drive_collectives() {
  bool moved = false;
  in_flight_.start_queued();
  const auto& active = in_flight_.active();
  const int spins = active.size() <= 1 ? engine_.spins() : 1;
  for (std::size_t i = 0; i < active.size();) {
    const std::shared_ptr<Work> work = active[i];
    const std::uint32_t before = work->step;
    const std::int64_t iteration = work->iteration;
    if (after_run(*work, in_flight_.executor().run(*work, spins))) {
      moved = true;
      start_others(work);
    } else {
      moved = moved || work->step != before || work->iteration != iteration;
      ++i;
    }
  }
  return moved;
}

void Driver::start_others(const std::shared_ptr<Work>& over) {
  if (over->finished()) {
    engine_.note_finished();
    in_flight_.remove_active(over);
  } else {
    in_flight_.add_next_call(over);
  }
  in_flight_.publish_completed();
  in_flight_.start_queued();
}

bool Driver::after_run(Work& work, Progress progress) {
  switch (progress) {
    case Progress::kDone:
      if (!failure_.quiet(work) && failure_.must_fail(work)) {
        failure_.finish(work, *failure_.error());
      } else if (work.continues) [[unlikely]] {
        prepare_next_call(work);
      } else if (!work.finished()) {
        in_flight_.complete(work);
        in_flight_.publish_completed();
        engine_.completion().hand_over(work.callbacks);
      }
      return true;
    case Progress::kMismatch:
      failure_.fail_by_mismatch(work, in_flight_.executor().mismatched_rank(),
                                in_flight_.executor().mismatched_signature());
      return true;
    case Progress::kBlocked:
      return false;
  }
  return false;
}

void Driver::prepare_next_call(Work& work) {
  in_flight_.end_call(work);
  work.state.store(WorkState::kQueued, std::memory_order_relaxed);
  Call call;
  try {
    if (!work.continuation->next(call)) {
      in_flight_.ends_continuing(work);
    }
  } catch (const Disagreement& found) {
    in_flight_.ends_continuing(work);
    failure_.refuse(work, found);
    return;
  }
  preparation_.prepare(work, call);
  work.posted.reset();
  work.warned = false;
  in_flight_.number_again(work);
}

bool Driver::drive_messages() {
  Messages& messages = in_flight_.messages();
  bool moved = messages.progress();
  while (const std::shared_ptr<Work> work = messages.next_changed()) {
    moved = step_message(*work) || moved;
  }
  return moved;
}

bool Driver::step(const std::shared_ptr<Work>& work) {
  if (work->is_message()) {
    return step_message(*work);
  }
  const bool over = after_run(*work, in_flight_.executor().run(*work, 1));
  if (over) {
    start_others(work);
  }
  return over;
}

bool Driver::step_message(Work& work) {
  switch (Messages::look(work)) {
    case Progress::kDone:
      in_flight_.messages().end(work);
      engine_.recorder().done(work);
      work.state.store(WorkState::kDone, std::memory_order_release);
      engine_.completion().hand_over(work.callbacks);
      engine_.note_finished();
      return true;
    case Progress::kMismatch:
      failure_.fail_by_mismatch(work, work.message.peer, Signature(work.streams[0]->peer_signature));
      return true;
    case Progress::kBlocked:
      return false;
  }
  return false;
}

}  // namespace collectives
