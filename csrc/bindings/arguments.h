// The arguments of a collective call, taken from a vectorcall without building tuples or dicts.
#pragma once

#include "bindings/numpy_api.h"
#include "core/types.h"
#include "runtime/work.h"

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

  // Fills `call` and returns true when the call is blocking and works on one plain array in place or on two, or on a
  // list of plain arrays in place. Anything else, also anything wrong, is for the general path.
  bool plain(Collective kind, Call* call) const;
};

// The number of the op of that name, -1 when there is none.
int op_of(PyObject* text);

// Whether an object is an array whose memory can take part as it is.
bool is_plain_array(PyObject* object);

// False with the Python error set when the arguments do not fit the signature of the method.
bool parse_arguments(Collective kind, const char* kind_name, PyObject* const* args, Py_ssize_t count, PyObject* names,
                     CallArguments* result);

}  // namespace collectives
