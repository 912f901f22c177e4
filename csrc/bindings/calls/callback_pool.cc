#include "bindings/calls/callback_pool.h"

#include <pthread.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "bindings/calls/unlocked.h"
#include "core/error.h"
#include "core/thread.h"
#include "engine/failure/words.h"

namespace collectives {
namespace {

namespace py = pybind11;

// How long callbacks that run may keep the next one waiting, for each of them: then they are taken to be waiting, and
// it gets another thread. It grows with their number, so that callbacks that only compute get few threads.
constexpr std::chrono::milliseconds kPatience(5);
// Threads that are kept for the next callbacks: one to run them, one to see whether it waits.
constexpr int kMostIdle = 2;

std::atomic<CallbackPool*> g_pool{nullptr};

// The threads of the parent do not exist in the child, and the lock may have been held: the child starts anew.
void after_fork_in_child() { g_pool.store(nullptr, std::memory_order_relaxed); }
[[maybe_unused]] const int g_handlers = pthread_atfork(nullptr, nullptr, after_fork_in_child);

// The interpreter's lock for a thread that Python has not made; between calls it is not held.
class PythonThread {
 public:
  PythonThread() : state_(PyGILState_Ensure()) { unlocked_.emplace(); }
  ~PythonThread() {
    unlocked_.reset();
    PyGILState_Release(state_);
  }
  PythonThread(const PythonThread&) = delete;
  PythonThread& operator=(const PythonThread&) = delete;

  template <typename Function>
  void locked(const Function& function) {
    unlocked_.reset();
    function();
    unlocked_.emplace();
  }

 private:
  PyGILState_STATE state_;
  std::optional<Unlocked> unlocked_;
};

thread_local PythonThread* t_python = nullptr;

}  // namespace

// A callback in Python. Made and destroyed with the interpreter locked.
struct CallbackPool::Task {
  py::object function;
  py::object handle;
  std::shared_ptr<Work> work;
  Completion::Ticket ticket;
  Task* next = nullptr;

  void run() const {
    try {
      function(handle);
    } catch (py::error_already_set& error) {
      const auto where = py::reinterpret_steal<py::object>(
          PyUnicode_FromFormat("the callback %R of %s", function.ptr(), call_text(*work).c_str()));
      PyErr_Clear();
      error.discard_as_unraisable(where ? where : function);
    }
  }
};

// Never deleted: its threads may outlive any order of destruction.
CallbackPool& CallbackPool::instance() {
  CallbackPool* pool = g_pool.load(std::memory_order_acquire);
  if (pool == nullptr) {
    auto made = std::make_unique<CallbackPool>();
    if (g_pool.compare_exchange_strong(pool, made.get(), std::memory_order_acq_rel)) {
      pool = made.release();
    }
  }
  return *pool;
}

void CallbackPool::add(Communicator& communicator, const std::shared_ptr<Work>& work, py::object function,
                       py::object handle) {
  auto task = std::make_unique<Task>();
  task->function = std::move(function);
  task->handle = std::move(handle);
  task->work = work;
  {
    const Unlocked unlocked;
    expect();
    try {
      communicator.add_callback(work, [this, task = task.get()](Work&, Completion::Ticket& ticket) {
        task->ticket = std::move(ticket);
        submit(*task);
      });
    } catch (...) {
      const std::lock_guard guard(mutex_);
      --expected_;
      throw;
    }
  }
  [[maybe_unused]] const Task* const taken = task.release();  // it may be gone already
}

// A callback will come, so there is a thread for it.
void CallbackPool::expect() {
  const std::lock_guard guard(mutex_);
  if (stopped_) {
    throw CollectivesError(ErrorKind::kClosed, "Python ends, so no callback can run any more", {});
  }
  if (threads_.empty()) {
    start_thread();
  }
  ++expected_;
  ended_.notify_all();  // retire() waits no longer
}

// On the completion thread, without the interpreter's lock.
void CallbackPool::submit(Task& task) noexcept {
  const std::lock_guard guard(mutex_);
  if (stopped_) {
    task.ticket = {};
    return;  // and leaves the rest, since Python may be gone
  }
  (first_ == nullptr ? first_ : last_->next) = &task;
  last_ = &task;
  if (idle_ > 0) {
    wake_.notify_one();
    return;
  }
  try {
    start_thread();
  } catch (const std::exception&) {
    // Those that there are will come to it.
  }
}

// With the lock held.
void CallbackPool::start_thread() {
  const auto self = threads_.emplace(threads_.end());
  try {
    ++idle_;
    *self = collectives::start_thread("collectives-py", "runs callbacks in Python", [this, self] { loop(self); });
  } catch (...) {
    --idle_;
    threads_.erase(self);
    throw;
  }
}

void CallbackPool::loop(std::list<std::thread>::iterator self) {
  // As in Python's own threads, so that a process which a callback starts does not begin with all signals blocked.
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  PythonThread python;
  t_python = &python;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (stopped_ || (first_ == nullptr && (idle_ > kMostIdle || (retiring_ > 0 && expected_ == 0)))) {
      break;
    }
    if (first_ == nullptr) {
      if (left_.empty()) {
        wake_.wait(lock);
      } else {
        join_ended(lock);
      }
      continue;
    }
    const auto turn = moved_ + kPatience * busy_;
    if (busy_ == 0 || std::chrono::steady_clock::now() >= turn) {
      work_off(lock);
    } else {
      wake_.wait_until(lock, turn);
    }
  }
  --idle_;
  left_.splice(left_.end(), threads_, self);
  ended_.notify_all();
}

void CallbackPool::work_off(std::unique_lock<std::mutex>& lock) {
  Task* const task = std::exchange(first_, first_->next);
  --idle_;
  ++busy_;
  moved_ = std::chrono::steady_clock::now();
  if (first_ != nullptr && idle_ == 0) {
    try {
      start_thread();  // which sees whether this callback waits
    } catch (const std::exception&) {
      // Then the next one comes after this one.
    }
  }
  lock.unlock();
  Completion::Ticket ticket = std::move(task->ticket);
  {
    // Also while the references go, of which one may be the last to the communicator.
    const Completion::Running running(ticket);
    t_python->locked([&] {
      task->run();
      delete task;
    });
  }
  lock.lock();
  --busy_;
  ++idle_;
  --expected_;
  moved_ = std::chrono::steady_clock::now();
  lock.unlock();
  ticket = {};
  lock.lock();
}

void CallbackPool::join_ended(std::unique_lock<std::mutex>& lock) {
  std::list<std::thread> left;
  left.swap(left_);
  lock.unlock();
  for (std::thread& thread : left) {
    thread.join();
  }
  lock.lock();
}

void CallbackPool::retire() {
  const Unlocked unlocked;
  std::unique_lock lock(mutex_);
  ++retiring_;
  wake_.notify_all();
  ended_.wait(lock, [&] { return threads_.empty() || expected_ > 0; });
  --retiring_;
  if (threads_.empty()) {
    join_ended(lock);
  }
}

void CallbackPool::stop() {
  Task* dropped = nullptr;
  {
    const Unlocked unlocked;
    std::unique_lock lock(mutex_);
    stopped_ = true;
    wake_.notify_all();
    ended_.wait(lock, [&] { return threads_.empty(); });
    join_ended(lock);
    dropped = std::exchange(first_, nullptr);
  }
  while (dropped != nullptr) {
    delete std::exchange(dropped, dropped->next);
  }
}

}  // namespace collectives
