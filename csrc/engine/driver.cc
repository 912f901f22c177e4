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
      engine_.note_finished();
      in_flight_.remove_active(work);
      in_flight_.publish_completed();
      in_flight_.start_queued();
    } else {
      moved = moved || work->step != before || work->iteration != iteration;
      ++i;
    }
  }
  return moved;
}

bool Driver::after_run(Work& work, Progress progress) {
  switch (progress) {
    case Progress::kDone:
      if (!failure_.quiet(work) && failure_.must_fail(work)) {
        failure_.finish(work, *failure_.error());
      } else if (!work.finished()) {
        in_flight_.complete(work);
        in_flight_.publish_completed();
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

bool Driver::drive_messages() {
  Messages& messages = in_flight_.messages();
  bool moved = messages.progress();
  while (const std::shared_ptr<Work> work = messages.next_changed()) {
    moved = step_message(*work) || moved;
  }
  return moved;
}

bool Driver::step(const std::shared_ptr<Work>& work) {
  const bool finished =
      work->is_message() ? step_message(*work) : after_run(*work, in_flight_.executor().run(*work, 1));
  if (finished) {
    engine_.note_finished();
  }
  return finished;
}

bool Driver::step_message(Work& work) {
  switch (Messages::look(work)) {
    case Progress::kDone:
      in_flight_.messages().end(work);
      engine_.recorder().done(work);
      work.state.store(WorkState::kDone, std::memory_order_release);
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
