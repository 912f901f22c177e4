// Releases the interpreter's lock for a scope.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace collectives {

// Other Python threads run while this exists. Unlike pybind11's gil_scoped_release it survives the end of the program:
// before Python 3.14, a daemon thread that asks for the lock then is ended by pthread_exit, which unwinds the stack. In
// a destructor that calls std::terminate, and objects on the stack must not be destroyed without the lock anyway. So
// the thread sleeps until the process has ended, as Python does itself from 3.14 on.
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

// Deletes without the lock, since releasing memory may wait for a device, and that for another Python thread.
template <typename T>
struct UnlockedDelete {
  void operator()(T* object) const {
    const Unlocked unlocked;
    delete object;
  }
};

}  // namespace collectives
