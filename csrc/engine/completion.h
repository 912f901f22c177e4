// Completion: calls back when works are finished. One thread of the engine makes the calls, without the engine's lock;
// so neither the progress thread nor a thread inside a blocking call ever runs the code of a caller.
//
// A callback must not block, since those of all communicators of the engine come after it: what may block hands its
// ticket to another thread, as the bindings do with callbacks in Python.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

namespace collectives {

struct Work;
struct WorkCallback;

class Completion {
 public:
  // The callbacks of one communicator that are registered and have not returned.
  struct Pending {
    std::size_t all = 0;
    std::size_t closing = 0;  // those of them that wait for the others
  };
  struct Shared;

  // A callback has not returned as long as this exists.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(std::shared_ptr<Shared> shared, std::shared_ptr<Pending> pending);
    Ticket(Ticket&&) = default;
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket() { give_back(); }
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

   private:
    friend class Completion;
    void give_back() noexcept;

    std::shared_ptr<Shared> shared_;
    std::shared_ptr<Pending> pending_;
  };

  // Exists while this thread runs the callback of the ticket, which would wait for itself where it closes its
  // communicator.
  class Running {
   public:
    explicit Running(const Ticket& ticket) : ticket_(ticket), outer_(innermost_) { innermost_ = this; }
    ~Running() { innermost_ = outer_; }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    friend class Completion;

    const Ticket& ticket_;
    Running* outer_;
    bool closing_ = false;
    static thread_local Running* innermost_;
  };

  // A callback has returned when the function has, unless it moves the ticket elsewhere: then when that is gone, so the
  // function must leave alone from there on what is gone when its communicator is closed.
  using Callback = std::function<void(Work& work, Ticket& ticket)>;

  Completion();
  ~Completion();
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  // Calls back when the work is finished, which it may be already. Under the engine's lock. Throws std::system_error
  // where no thread can be started.
  void add(const std::shared_ptr<Work>& work, const std::shared_ptr<Pending>& pending, Callback callback);
  // The callbacks of a work that is finished. Under the engine's lock; allocates nothing and cannot fail.
  void hand_over(std::list<WorkCallback>& callbacks) noexcept {
    if (!callbacks.empty()) [[unlikely]] {
      queue(callbacks);
    }
  }
  // Waits until all these callbacks have returned, but for the one that calls this; false after timeout_s, where it is
  // not negative. Without the engine's lock, and when the works of all are finished.
  bool wait(Pending& pending, double timeout_s);

  // In a child of the process that made this: its thread is not there, and its lock may never be free again.
  void leave_to_parent();

 private:
  void queue(std::list<WorkCallback>& callbacks) noexcept;

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

// A callback that is registered for a work.
struct WorkCallback {
  std::shared_ptr<Work> work;
  Completion::Ticket ticket;
  Completion::Callback call;
};

}  // namespace collectives
