// The options of a call: what a caller may say besides the arrays, their lengths and the other rank of a message.
#pragma once

#include <pybind11/pybind11.h>

#include <array>

#include "engine/work.h"

namespace collectives {

// In the one order in which methods pass them by position, and in which Python's CallOptions (_calls/options.py) has
// them. Messages have the first four, vector collectives those up to the algorithm and some of the others, dense ones
// all. Borrowed references; nullptr where nothing was given.
struct CallOptions {
  PyObject* async_op = nullptr;
  PyObject* timeout = nullptr;
  PyObject* name = nullptr;
  PyObject* stream = nullptr;  // for arrays on devices, which are never plain
  PyObject* algorithm = nullptr;
  PyObject* op = nullptr;
  PyObject* root = nullptr;
  PyObject* deterministic = nullptr;
  PyObject* factor = nullptr;
};

struct CallOption {
  const char* name;
  PyObject* CallOptions::* field;
};

inline constexpr std::array<CallOption, 9> kCallOptions = {{{"async_op", &CallOptions::async_op},
                                                            {"timeout", &CallOptions::timeout},
                                                            {"name", &CallOptions::name},
                                                            {"stream", &CallOptions::stream},
                                                            {"algorithm", &CallOptions::algorithm},
                                                            {"op", &CallOptions::op},
                                                            {"root", &CallOptions::root},
                                                            {"deterministic", &CallOptions::deterministic},
                                                            {"factor", &CallOptions::factor}}};

// The options behind the first `others` arguments of a method, by position, with the defaults of those that are not
// there. ArgumentTypeError where there are too few arguments, or too many.
CallOptions options_by_position(const char* method, PyObject* const* args, Py_ssize_t count, Py_ssize_t others);

// For methods of ours that take all their arguments by position. ArgumentTypeError where there are too few or too many.
void check_count(const char* method, Py_ssize_t count, int wanted);

// Python's CallOptions, with the defaults of those that were not given.
pybind11::object as_record(const CallOptions& options);

// Those of Python's CallOptions, which keeps them alive. ArgumentTypeError for any other object.
CallOptions options_of(pybind11::handle record);

// Fills op, root, deterministic, factor, timeout_s and name of `call` from options that are checked and all given.
void read_options(const CallOptions& options, Call* call);

bool is_async(const CallOptions& options);

}  // namespace collectives
