#include "engine/completion.h"

#include <chrono>
#include <exception>
#include <new>
#include <utility>
#include <vector>

#include "core/say.h"
#include "core/thread.h"
#include "engine/failure/words.h"
#include "engine/work.h"

namespace collectives {
namespace {

void say_what_a_callback_threw(const Work& work, const char* what) noexcept {
  try {
    say("collectives: error: a callback of " + call_text(work) + " has thrown: " + what + "\n");
  } catch (const std::exception&) {
    say("collectives: error: a callback has thrown, and there is no memory left to say more\n");
  }
}

}  // namespace

thread_local Completion::Running* Completion::Running::innermost_ = nullptr;

// Outlives the engine where a callback destroys that.
struct Completion::Shared {
  std::mutex mutex;
  std::condition_variable wake;      // the thread
  std::condition_variable returned;  // those who wait for callbacks
  std::list<WorkCallback> queue;
  std::thread::id thread;
  bool stop = false;

  void loop() {
    std::unique_lock lock(mutex);
    thread = std::this_thread::get_id();
    for (;;) {
      wake.wait(lock, [&] { return stop || !queue.empty(); });
      if (queue.empty()) {
        return;
      }
      call_first(lock);
    }
  }

  void call_first(std::unique_lock<std::mutex>& lock) {
    std::list<WorkCallback> first;
    first.splice(first.begin(), queue, queue.begin());
    lock.unlock();
    {
      WorkCallback& callback = first.front();
      const Running running(callback.ticket);
      try {
        callback.call(*callback.work, callback.ticket);
      } catch (const std::exception& error) {
        say_what_a_callback_threw(*callback.work, error.what());
      } catch (...) {
        say_what_a_callback_threw(*callback.work, "no std::exception");
      }
      // What it holds may be the last of a communicator: gone before the callback counts as returned.
      callback.call = nullptr;
      callback.work = nullptr;
    }
    first.clear();
    lock.lock();
  }
};

Completion::Ticket::Ticket(std::shared_ptr<Shared> shared, std::shared_ptr<Pending> pending)
    : shared_(std::move(shared)), pending_(std::move(pending)) {
  const std::lock_guard guard(shared_->mutex);
  ++pending_->all;
}

Completion::Ticket& Completion::Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    give_back();
    shared_ = std::move(other.shared_);
    pending_ = std::move(other.pending_);
  }
  return *this;
}

void Completion::Ticket::give_back() noexcept {
  if (shared_ != nullptr) {
    {
      const std::lock_guard guard(shared_->mutex);
      --pending_->all;
      shared_->returned.notify_all();
    }
    shared_ = nullptr;
    pending_ = nullptr;
  }
}

Completion::Completion() : shared_(std::make_shared<Shared>()) {}

Completion::~Completion() {
  {
    const std::lock_guard guard(shared_->mutex);
    shared_->stop = true;
    shared_->wake.notify_one();
  }
  if (!thread_.joinable()) {
    return;
  }
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();  // a callback has destroyed the engine
  } else {
    thread_.join();
  }
}

void Completion::leave_to_parent() {
  new (&thread_) std::thread;
  [[maybe_unused]] auto* const left = new std::shared_ptr<Shared>(std::move(shared_));
  shared_ = std::make_shared<Shared>();  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): left to the parent
}

void Completion::add(const std::shared_ptr<Work>& work, const std::shared_ptr<Pending>& pending, Callback callback) {
  if (!thread_.joinable()) {
    thread_ = start_thread("collectives-cb", "calls back when asynchronous calls are over",
                           [shared = shared_] { shared->loop(); });
  }
  work->callbacks.push_back({work, Ticket(shared_, pending), std::move(callback)});
  if (work->finished()) {
    queue(work->callbacks);
  }
}

void Completion::queue(std::list<WorkCallback>& callbacks) noexcept {
  const std::lock_guard guard(shared_->mutex);
  shared_->queue.splice(shared_->queue.end(), callbacks);
  shared_->wake.notify_one();
}

bool Completion::wait(Pending& pending, double timeout_s) {
  std::unique_lock lock(shared_->mutex);
  bool inside = false;  // of a callback of these
  std::vector<Running*> closing;
  for (Running* running = Running::innermost_; running != nullptr; running = running->outer_) {
    if (running->ticket_.pending_.get() == &pending) {
      inside = true;
      if (!std::exchange(running->closing_, true)) {
        closing.push_back(running);
      }
    }
  }
  pending.closing += closing.size();
  shared_->returned.notify_all();
  while (shared_->thread == std::this_thread::get_id() && !shared_->queue.empty()) {
    shared_->call_first(lock);  // nobody else would
  }
  // Callbacks that close the same communicator at the same time do not wait for each other.
  const auto returned = [&] { return pending.all == (inside ? pending.closing : 0); };
  bool over = true;
  if (timeout_s < 0) {
    shared_->returned.wait(lock, returned);
  } else {
    over = shared_->returned.wait_for(lock, std::chrono::duration<double>(timeout_s), returned);
  }
  pending.closing -= closing.size();
  for (Running* running : closing) {
    running->closing_ = false;
  }
  return over;
}

}  // namespace collectives
