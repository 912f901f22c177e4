#include "bindings/tensorflow/flights.h"

#include <algorithm>
#include <new>
#include <thread>

#include "core/error.h"
#include "core/thread.h"

namespace collectives::tensorflow {
namespace {

// TensorFlow copies memory that is aligned less, and then lets go of ours at once.
constexpr std::align_val_t kAlignment{64};

// How long one engine is driven while others have flights too.
constexpr double kTurnSeconds = 0.001;

// From this size on a collective goes on in the background from its start. A smaller one has mostly done what its peers
// need of it when it was posted, and waking the thread costs more than the whole collective.
constexpr std::int64_t kBackgroundBytes = 64 << 10;

// Workers that train in step come to a collective at nearly the same time; so it is worth that many seconds of a thread
// of TensorFlow to save the way through ours, which takes longer.
constexpr double kBriefSeconds = 300e-6;

bool needs_thread(const std::shared_ptr<Flight>& flight) {
  return flight->over != nullptr || flight->work->finished() || flight->work->output.bytes >= kBackgroundBytes;
}

}  // namespace

// Never deleted: its thread sleeps in it until the process is gone.
Flights& Flights::instance() {
  static auto* const made = new Flights;
  return *made;
}

Flights::Flights() {
  start_thread("collectives-tf", "ends asynchronous ops of TensorFlow", [this] { loop(); }).detach();
}

Tensor Flights::launch(std::shared_ptr<Flight> flight) {
  auto* const number = new (kAlignment) std::int64_t;
  const bool finished = flight->work->finished();
  const bool background = !finished && flight->work->output.bytes >= kBackgroundBytes;
  {
    const std::lock_guard guard(mutex_);
    *number = next_++;
    if (!finished) {
      pending_.push_back(flight);
    }
    flights_.emplace(*number, std::move(flight));
  }
  if (background) {
    wake_.notify_one();
  }
  return Tensor(api().TF_NewTensor(kTfInt64, nullptr, 0, number, sizeof *number, drop, nullptr));
}

void Flights::drop(void* data, std::size_t /*bytes*/, void* /*argument*/) {
  auto* const number = static_cast<std::int64_t*>(data);
  Flights& all = instance();
  std::shared_ptr<Flight> flight;  // deleted without the lock: that may be the end of a communicator
  bool given_up = false;
  {
    const std::lock_guard guard(all.mutex_);
    if (auto found = all.flights_.extract(*number); !found.empty()) {
      flight = std::move(found.mapped());
      if (flight->work->finished()) {
        std::erase(all.pending_, flight);
      } else if (flight->over == nullptr) {
        // Nobody waits for it, and it must come to its end all the same.
        given_up = true;
        flight->over = [] {};
      }
    }
  }
  if (given_up) {
    all.wake_.notify_one();
  }
  operator delete(number, kAlignment);
}

std::shared_ptr<Flight> Flights::find(const TfTensor* handle) {
  const std::int64_t number = *reinterpret_cast<const std::int64_t*>(span_of(handle).data);
  const std::lock_guard guard(mutex_);
  const auto found = flights_.find(number);
  if (found == flights_.end()) {
    throw CollectivesError(ErrorKind::kClosed,
                           "no collective has the handle " + std::to_string(number) +
                               "; a handle is good in the step and the process that made it only",
                           {});
  }
  return found->second;
}

void Flights::when_over(const std::shared_ptr<Flight>& flight, std::function<void()> over) {
  try {
    // With a larger one our thread is under way.
    if (flight->work->output.bytes < kBackgroundBytes) {
      flight->communicator->wait(*flight->work, kBriefSeconds);
    }
  } catch (const CollectivesError&) {
    // That of the work, which is finished: its reader finds it there.
  }
  {
    const std::lock_guard guard(mutex_);
    if (flight->work->finished()) {
      std::erase(pending_, flight);  // unless the thread came to it first
    } else {
      flight->over = std::move(over);
      over = nullptr;
    }
  }
  if (over) {
    over();
  } else {
    wake_.notify_one();
  }
}

std::size_t Flights::in_flight() {
  const std::lock_guard guard(mutex_);
  return pending_.size();
}

bool Flights::any_over() {
  const std::lock_guard guard(mutex_);
  return std::any_of(pending_.begin(), pending_.end(), [](const auto& flight) { return flight->work->finished(); });
}

std::vector<std::shared_ptr<Flight>> Flights::take_over() {
  const std::lock_guard guard(mutex_);
  const auto begin = std::stable_partition(pending_.begin(), pending_.end(),
                                           [](const auto& flight) { return !flight->work->finished(); });
  std::vector<std::shared_ptr<Flight>> over(std::make_move_iterator(begin), std::make_move_iterator(pending_.end()));
  pending_.erase(begin, pending_.end());
  return over;
}

void Flights::loop() {
  std::size_t turn = 0;
  for (;;) {
    std::shared_ptr<Engine> engine;
    bool alone = true;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return std::any_of(pending_.begin(), pending_.end(), needs_thread); });
      engine = pending_[turn++ % pending_.size()]->communicator->engine();
      alone = std::all_of(pending_.begin(), pending_.end(),
                          [&](const auto& flight) { return flight->communicator->engine() == engine; });
    }
    {
      const std::lock_guard guard(engine->lock());
      // A flight of another engine may come at any time, so even a single engine is left now and then.
      engine->wait([&] { return any_over(); }, alone ? 20 * kTurnSeconds : kTurnSeconds);
    }
    for (const std::shared_ptr<Flight>& flight : take_over()) {
      std::function<void()> over;
      {
        const std::lock_guard guard(mutex_);
        over = std::move(flight->over);
      }
      if (over) {
        over();
      }
    }
  }
}

}  // namespace collectives::tensorflow
