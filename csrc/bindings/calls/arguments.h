// The arguments of a collective call, taken from a vectorcall without building tuples or dicts.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "bindings/arrays/numpy_api.h"
#include "core/types.h"
#include "engine/work.h"

namespace collectives {

// Borrowed references; nullptr where nothing was given.
struct CallArguments {
  PyObject* x = nullptr;
  PyObject* op = nullptr;
  PyObject* root = nullptr;
  PyObject* out = nullptr;
  PyObject* algorithm = nullptr;
  PyObject* deterministic = nullptr;
  PyObject* async_op = nullptr;
  PyObject* timeout = nullptr;
  PyObject* name = nullptr;
  PyObject* factor = nullptr;
  PyObject* stream = nullptr;  // for arrays on devices, which are never plain

  // Fills `call`, but for the algorithm, and returns true when the call works on one plain array in place or on two, or
  // on a list of plain arrays in place. Anything else, also anything wrong, is for the general path.
  // held: what has to live until the call is over. The caller holds a list, but another thread may take arrays out of
  // it.
  bool plain(Collective kind, Call* call, pybind11::object* held) const;

 private:
  bool take_arrays(Call* call, pybind11::object* held) const;
};

// The number of the op of that name, -1 when there is none.
int op_of(PyObject* text);

// The value of a float or an int, of a str. False, without a Python error, for anything else.
bool number(PyObject* object, double* result);
bool text(PyObject* object, std::string* result);

// Fills dtype, input and output of `call` from plain arrays of one element type, which are their own outputs. False for
// anything else. written: they must be writable and share no memory.
bool plain_list(PyObject* tuple, bool written, Call* call);

// False with the Python error set when the arguments do not fit the signature of the method.
bool parse_arguments(Collective kind, const char* kind_name, PyObject* const* args, Py_ssize_t count, PyObject* names,
                     CallArguments* result);

}  // namespace collectives
