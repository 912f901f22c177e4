// The arguments of a collective call, parsed from a vectorcall without building tuples or dicts.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "bindings/arrays/numpy_api.h"
#include "bindings/calls/options.h"
#include "core/types.h"
#include "engine/work.h"

namespace collectives {

// Borrowed references; nullptr where nothing was given.
struct CallArguments : CallOptions {
  PyObject* x = nullptr;
  PyObject* out = nullptr;

  // Fills `call`, except for the algorithm, where the fast path can make it: on one plain array in place, on one and a
  // plain `out`, or on a list of plain arrays in place. Otherwise returns false: the general path makes the call, or
  // raises what is wrong with it. held: gets the references that must live until the call is done. The caller holds the
  // list, but another thread may remove arrays from it.
  bool plain(Collective kind, Call* call, pybind11::object* held) const;

 private:
  bool read_arrays(Call* call, pybind11::object* held) const;
};

// Interns the names of arguments and ops. Once, before any call.
void load_names();

// The number of an op by its name, -1 when there is none.
int op_of(PyObject* text);

// The value of a float or an int; of a str. False, without a Python error, for any other object.
bool number(PyObject* object, double* result);
bool text(PyObject* object, std::string* result);

// Fills dtype, shapes, input and output of `call` from a tuple of plain arrays of one element type, which are their own
// outputs. False for anything else. written: the call writes to them, so they must be writable and share no memory.
bool plain_list(PyObject* tuple, bool written, Call* call);

// False with the Python error set when the arguments do not fit the signature of the method.
bool parse_arguments(Collective kind, const char* kind_name, PyObject* const* args, Py_ssize_t count, PyObject* names,
                     CallArguments* result);

}  // namespace collectives
