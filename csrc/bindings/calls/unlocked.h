// The interpreter's lock, given away for a while.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace collectives {

// Other Python threads run while this exists. Unlike pybind11's gil_scoped_release it stands the end of the program:
// before Python 3.14, a daemon thread that wants the lock back then is ended by pthread_exit, which unwinds the stack.
// From a destructor that is std::terminate, and the objects on the stack may not be touched without the lock anyway. So
// the thread sleeps until the process is gone, as it does from 3.14 on.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    try {
      PyEval_RestoreThread(state_);
    } catch (const abi::__forced_unwind&) {
      for (;;) {
        pause();
      }
    }
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

// Deletes without the lock: what is given back may wait for a device, which may wait for another Python thread.
template <typename T>
struct UnlockedDelete {
  void operator()(T* object) const {
    const Unlocked unlocked;
    delete object;
  }
};

}  // namespace collectives
