#include "bindings/tensorflow/in_flight_operations.h"

#include <algorithm>
#include <new>
#include <thread>

#include "core/error.h"
#include "core/thread.h"

namespace collectives::tensorflow {
namespace {

// TensorFlow copies memory that is aligned less, and frees the original at once.
constexpr std::align_val_t kAlignment{64};

// How long one engine is driven while other engines have operations, too.
constexpr double kTurnSeconds = 0.001;

// From this size on the progress thread drives a collective from its start. A smaller one has usually sent all that its
// peers need when it is posted, and waking the thread costs more than the whole collective.
constexpr std::int64_t kBackgroundBytes = 64 << 10;

// How long a thread of TensorFlow waits for an operation itself. Workers that train in step start a collective at
// nearly the same time, so it mostly ends within this time, and handing it to the progress thread would take longer.
constexpr double kBriefSeconds = 300e-6;

bool needs_thread(const std::shared_ptr<InFlightOperation>& operation) {
  return operation->on_end != nullptr || operation->work->finished() ||
         operation->work->output.bytes >= kBackgroundBytes;
}

}  // namespace

// Never deleted: the progress thread uses it until the process ends.
InFlightOperations& InFlightOperations::instance() {
  static auto* const made = new InFlightOperations;
  return *made;
}

InFlightOperations::InFlightOperations() {
  start_thread("collectives-tf", "ends asynchronous ops of TensorFlow", [this] { loop(); }).detach();
}

Tensor InFlightOperations::track(std::shared_ptr<InFlightOperation> operation) {
  auto* const number = new (kAlignment) std::int64_t;
  const bool finished = operation->work->finished();
  const bool background = !finished && operation->work->output.bytes >= kBackgroundBytes;
  {
    const std::lock_guard guard(mutex_);
    *number = next_++;
    if (!finished) {
      pending_.push_back(operation);
    }
    by_handle_.emplace(*number, std::move(operation));
  }
  if (background) {
    wake_.notify_one();
  }
  return Tensor(api().TF_NewTensor(kTfInt64, nullptr, 0, number, sizeof *number, handle_deleted, nullptr));
}

void InFlightOperations::handle_deleted(void* data, std::size_t /*bytes*/, void* /*argument*/) {
  auto* const number = static_cast<std::int64_t*>(data);
  InFlightOperations& all = instance();
  std::shared_ptr<InFlightOperation> operation;  // deleted without the lock: this may delete a communicator, too
  bool abandoned = false;
  {
    const std::lock_guard guard(all.mutex_);
    if (auto found = all.by_handle_.extract(*number); !found.empty()) {
      operation = std::move(found.mapped());
      if (operation->work->finished()) {
        std::erase(all.pending_, operation);
      } else if (operation->on_end == nullptr) {
        // No op waits for it any more, but other ranks may: the progress thread drives it to its end.
        abandoned = true;
        operation->on_end = [] {};
      }
    }
  }
  if (abandoned) {
    all.wake_.notify_one();
  }
  operator delete(number, kAlignment);
}

std::shared_ptr<InFlightOperation> InFlightOperations::find(const TfTensor* handle) {
  const std::int64_t number = *reinterpret_cast<const std::int64_t*>(span_of(handle).data);
  const std::lock_guard guard(mutex_);
  const auto found = by_handle_.find(number);
  if (found == by_handle_.end()) {
    throw CollectivesError(ErrorKind::kClosed,
                           "no collective has the handle " + std::to_string(number) +
                               "; a handle is good in the step and the process that made it only",
                           {});
  }
  return found->second;
}

void InFlightOperations::on_completion(const std::shared_ptr<InFlightOperation>& operation,
                                       std::function<void()> on_end) {
  try {
    // The progress thread drives larger ones already.
    if (operation->work->output.bytes < kBackgroundBytes) {
      operation->communicator->wait(*operation->work, kBriefSeconds);
    }
  } catch (const CollectivesError&) {
    // The work has failed, and holds the error.
  }
  {
    const std::lock_guard guard(mutex_);
    if (operation->work->finished()) {
      std::erase(pending_, operation);  // the progress thread may have removed it
    } else {
      operation->on_end = std::move(on_end);
      on_end = nullptr;
    }
  }
  if (on_end) {
    on_end();
  } else {
    wake_.notify_one();
  }
}

std::size_t InFlightOperations::in_flight() {
  const std::lock_guard guard(mutex_);
  return pending_.size();
}

bool InFlightOperations::any_finished() {
  const std::lock_guard guard(mutex_);
  return std::any_of(pending_.begin(), pending_.end(),
                     [](const auto& operation) { return operation->work->finished(); });
}

std::vector<std::shared_ptr<InFlightOperation>> InFlightOperations::extract_finished() {
  const std::lock_guard guard(mutex_);
  const auto begin = std::stable_partition(pending_.begin(), pending_.end(),
                                           [](const auto& operation) { return !operation->work->finished(); });
  std::vector<std::shared_ptr<InFlightOperation>> finished(std::make_move_iterator(begin),
                                                           std::make_move_iterator(pending_.end()));
  pending_.erase(begin, pending_.end());
  return finished;
}

void InFlightOperations::loop() {
  std::size_t turn = 0;
  for (;;) {
    std::shared_ptr<Engine> engine;
    bool alone = true;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return std::any_of(pending_.begin(), pending_.end(), needs_thread); });
      engine = pending_[turn++ % pending_.size()]->communicator->engine();
      alone = std::all_of(pending_.begin(), pending_.end(),
                          [&](const auto& operation) { return operation->communicator->engine() == engine; });
    }
    {
      const std::lock_guard guard(engine->lock());
      // Even a single engine is left now and then, since an operation of another engine may have started.
      engine->wait([&] { return any_finished(); }, alone ? 20 * kTurnSeconds : kTurnSeconds);
    }
    for (const std::shared_ptr<InFlightOperation>& operation : extract_finished()) {
      std::function<void()> on_end;
      {
        const std::lock_guard guard(mutex_);
        on_end = std::move(operation->on_end);
      }
      if (on_end) {
        on_end();
      }
    }
  }
}

}  // namespace collectives::tensorflow
