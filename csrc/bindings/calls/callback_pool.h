// Threads that run Python's callbacks of works: those may wait and block, which the engine's completion thread must
// not. Mostly there is one, which runs them in the order in which the works have finished; further ones come while a
// callback waits. None is known to Python's `threading`, which would wait for it before the program's communicators are
// closed.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/communicator.h"

namespace collectives {

class CallbackPool {
 public:
  // The pool of this process. A forked child gets its own.
  static CallbackPool& instance();

  // Calls function(handle) when the work is finished, which it may be already. Throws ClosedError when the communicator
  // is closed or Python ends, and std::system_error where no thread can be started. With the interpreter locked, as the
  // two functions below.
  void add(Communicator& communicator, const std::shared_ptr<Work>& work, pybind11::object function,
           pybind11::object handle);

  // Ends the threads, if no callback needs one; the next callback starts one again.
  void retire();
  // For the end of Python: no callback begins any more, and those that run have returned.
  void stop();

 private:
  struct Task;

  void expect();
  void submit(Task& task) noexcept;
  void start_thread();
  void loop(std::list<std::thread>::iterator self);
  void work_off(std::unique_lock<std::mutex>& lock);
  void join_ended(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable ended_;  // a thread
  Task* first_ = nullptr;          // to be run, in order
  Task* last_ = nullptr;
  std::size_t expected_ = 0;  // tasks that are registered and have not returned
  std::list<std::thread> threads_;
  std::list<std::thread> left_;  // threads that only have to be joined
  int idle_ = 0;
  int busy_ = 0;                                 // with a callback
  std::chrono::steady_clock::time_point moved_;  // when a callback last began or returned
  int retiring_ = 0;                             // callers of retire()
  bool stopped_ = false;
};

}  // namespace collectives
