// Objects of Python that are made when they are first used, and kept for ever.
//
// They are no static initialisers: a thread that waits until another has made such an object would hold the
// interpreter's lock (where there is one), or would not stop when Python stops the world (where there is none), and the
// other might wait for just that. So two threads may make it at once; all use the one that was there first.
#pragma once

#include <Python.h>

#include <atomic>

namespace collectives {

class Kept {
 public:
  // The object, or what `make` returns: a new reference, or nullptr with Python's exception set.
  template <typename Make>
  PyObject* get(const Make& make) {
    PyObject* known = object_.load(std::memory_order_acquire);
    if (known == nullptr) {
      PyObject* const made = make();
      if (made == nullptr || object_.compare_exchange_strong(known, made, std::memory_order_acq_rel)) {
        return made;
      }
      Py_DECREF(made);
    }
    return known;
  }

 private:
  std::atomic<PyObject*> object_{nullptr};
};

// An interned string, such as the name of a method.
class KeptName {
 public:
  explicit constexpr KeptName(const char* text) : text_(text) {}
  operator PyObject*() {
    return object_.get([this] { return PyUnicode_InternFromString(text_); });
  }

 private:
  const char* text_;
  Kept object_;
};

// A record of several such objects, in the same way. T's members are pointers that are kept for ever.
template <typename T>
class KeptRecord {
 public:
  // nullptr where `make` returns nullptr; it returns a new T. drop: gives back the references of one that came late.
  template <typename Make, typename Drop>
  const T* get(const Make& make, const Drop& drop) {
    const T* known = record_.load(std::memory_order_acquire);
    if (known == nullptr) {
      const T* const made = make();
      if (made == nullptr || record_.compare_exchange_strong(known, made, std::memory_order_acq_rel)) {
        return made;
      }
      drop(*made);
      delete made;
    }
    return known;
  }

 private:
  std::atomic<const T*> record_{nullptr};
};

}  // namespace collectives
