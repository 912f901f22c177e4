#include "bindings/calls/communicator.h"

#include <pybind11/stl.h>

#include <array>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "bindings/arrays/arrays.h"
#include "bindings/calls/arguments.h"
#include "bindings/calls/callback_pool.h"
#include "bindings/calls/docs.h"
#include "bindings/calls/layouts.h"
#include "bindings/calls/messages.h"
#include "bindings/calls/options.h"
#include "bindings/calls/unlocked.h"
#include "bindings/calls/vector_calls.h"
#include "bindings/calls/work.h"
#include "bindings/setup/errors.h"
#include "bindings/setup/kept.h"
#include "core/error.h"
#include "engine/directory.h"
#include "engine/flag_latency.h"
#include "memory/host_memory.h"
#include "memory/memory.h"
#include "structmember.h"

namespace collectives {
namespace {

namespace py = pybind11;

constexpr const char* kCapsule = "collectives.Communicator";

struct PyCommunicator {
  PyObject_HEAD Communicator* communicator;
  std::shared_ptr<Communicator>* owner;
  PyObject* weak_references;
};

PyTypeObject* g_type = nullptr;

PyObject* new_communicator(PyTypeObject* type, PyObject* args, PyObject* /*keywords*/) {
  PyObject* capsule = nullptr;
  if (!PyArg_ParseTuple(args, "O", &capsule)) {
    return nullptr;
  }
  auto* owner = static_cast<std::shared_ptr<Communicator>*>(PyCapsule_GetPointer(capsule, kCapsule));
  if (owner == nullptr || PyCapsule_SetDestructor(capsule, nullptr) != 0 ||
      PyCapsule_SetName(capsule, "consumed") != 0) {
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) {
    auto* object = reinterpret_cast<PyCommunicator*>(self);
    object->communicator = owner->get();
    object->owner = owner;
  }
  return self;
}

void delete_communicator(PyObject* self) {
  auto* object = reinterpret_cast<PyCommunicator*>(self);
  if (object->weak_references != nullptr) {
    PyObject_ClearWeakRefs(self);
  }
  PyTypeObject* type = Py_TYPE(self);
  std::shared_ptr<Communicator>* owner = object->owner;
  Py_BEGIN_ALLOW_THREADS;
  delete owner;
  Py_END_ALLOW_THREADS;
  type->tp_free(self);
  Py_DECREF(type);
}

// The general path, in Python. It makes the calls that the fast path does not: on arrays of other libraries, on arrays
// that are not contiguous and have to be copied, and on lists with lists of outputs. It also raises the errors for
// wrong arguments.
PyObject* call_general(PyObject* self, const char* collective, CallArguments a) {
  static constinit KeptName method("_general_dense");
  for (const CallOption& option : kCallOptions) {
    a.*option.field = a.*option.field == Py_None ? nullptr : a.*option.field;  // None stands for the default
  }
  try {
    const py::str name(collective);
    const py::object options = as_record(a);
    PyObject* arguments[] = {self, name.ptr(), a.x == nullptr ? Py_None : a.x, a.out == nullptr ? Py_None : a.out,
                             options.ptr()};
    return PyObject_VectorcallMethod(method, arguments, std::size(arguments), nullptr);
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

// The first part of a blocking call. A short one keeps the interpreter locked, since unlocking and locking it costs as
// much as the collective. Not where ranks are threads of one process: the others need the lock to make their calls.
bool run(Communicator& communicator, const Call& call, std::shared_ptr<Work>& work) {
  constexpr std::int64_t kBriefBytes = 16 << 10;
  const bool brief = call.input.empty() || (call.input.size() == 1 && call.input[0].bytes <= kBriefBytes &&
                                            call.output[0].bytes <= kBriefBytes);
  if (brief && !communicator.options().threads) {
    return communicator.run(call, work);
  }
  const Unlocked unlocked;
  return communicator.run(call, work);
}

// Sets the algorithm of a call. False for a name that the general path will refuse.
bool choose_algorithm(PyObject* name, const Communicator& communicator, Call* call) {
  call->algorithm = 0;
  if (name == nullptr || name == Py_None) {
    return true;
  }
  std::string words;
  if (!text(name, &words)) {
    return false;
  }
  try {
    call->algorithm = algorithm_number(call->problem(), words, communicator.topology());
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

PyObject* collective(Collective kind, const char* kind_name, PyObject* self, PyObject* const* args, Py_ssize_t count,
                     PyObject* names) {
  CallArguments a;
  if (!parse_arguments(kind, kind_name, args, count, names, &a)) {
    return nullptr;
  }
  release_dropped();
  thread_local Call call;
  py::object held;
  Communicator& communicator = *reinterpret_cast<PyCommunicator*>(self)->communicator;
  if (!a.plain(kind, &call, &held) || !choose_algorithm(a.algorithm, communicator, &call)) {
    return call_general(self, kind_name, a);
  }
  PyObject* result = a.out != nullptr && a.out != Py_None ? a.out : a.x;
  if (result == nullptr || (kind == Collective::kExscan && communicator.rank() == 0)) {
    result = Py_None;
  }
  if (a.async_op == Py_True) {
    try {
      return start_call(communicator, self, call, held ? held.ptr() : a.x, a.out, result);
    } catch (...) {
      set_python_error();
      return nullptr;
    }
  }
  if (!run_to_end(communicator, call)) {
    return nullptr;
  }
  Py_INCREF(result);
  return result;
}

template <Collective kKind>
PyObject* method(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const std::string kind_name(name(kKind));
  return collective(kKind, kind_name.c_str(), self, args, count, names);
}

template <Collective kKind>
PyCFunction as_function() {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&method<kKind>));
}

using Run = PyObject* (*)(PyObject* self, Communicator& communicator, PyObject* const* args, Py_ssize_t count);

template <Run kRun>
PyObject* run_method(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  try {
    return kRun(self, *reinterpret_cast<PyCommunicator*>(self)->communicator, args, count);
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

template <Run kRun>
PyCFunction as_function() {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&run_method<kRun>));
}

PyMethodDef g_methods[] = {
    {"all_reduce", as_function<Collective::kAllReduce>(), METH_FASTCALL | METH_KEYWORDS, kAllReduceDoc},
    {"reduce", as_function<Collective::kReduce>(), METH_FASTCALL | METH_KEYWORDS,
     "reduce($self, x, op='sum', root=0, *, out=None, factor=None, " SHARED_KEYWORDS ")\n--\n\n"
     "Reduces ``x`` over all ranks; only ``root`` gets the result, in ``x`` or ``out``. See ``all_reduce``."},
    {"scan", as_function<Collective::kScan>(), METH_FASTCALL | METH_KEYWORDS,
     "scan($self, x, op='sum', *, out=None, factor=None, " SHARED_KEYWORDS ")\n--\n\n"
     "The inclusive prefix reduction: rank r gets what ``x`` of ranks 0 to r combine to, in ``x`` or ``out``.\n\n"
     "Values are combined from rank 0 upwards where ``deterministic`` is true, each partial result rounded to the\n"
     "dtype. Otherwise the order may depend on the length, but is the same in every run. \"avg\" is a TypeError. For\n"
     "the rest see ``all_reduce``.\n\n"
     "Example:\n"
     "    >>> end = comm.scan(np.array([len(rows)]))[0]  # of the rows of this rank among those of all"},
    {"exscan", as_function<Collective::kExscan>(), METH_FASTCALL | METH_KEYWORDS,
     "exscan($self, x, op='sum', *, out=None, factor=None, " SHARED_KEYWORDS ")\n--\n\n"
     "The exclusive prefix reduction: rank r gets what ``x`` of ranks 0 to r - 1 combine to, in ``x`` or ``out``.\n\n"
     "Nothing comes before rank 0: the call returns None there and leaves ``x`` and ``out`` as they are, whatever the\n"
     "op. See ``scan``.\n\n"
     "Example:\n"
     "    >>> before = comm.exscan(np.array([len(rows)]))\n"
     "    >>> begin = 0 if before is None else before[0]  # of the rows of this rank among those of all"},
    {"broadcast", as_function<Collective::kBroadcast>(), METH_FASTCALL | METH_KEYWORDS,
     "broadcast($self, x, root=0, *, out=None, " SHARED_KEYWORDS ")\n--\n\n"
     "Copies ``x`` of rank ``root`` into ``x`` (or ``out``) of every rank. See ``all_reduce``."},
    {"barrier", as_function<Collective::kBarrier>(), METH_FASTCALL | METH_KEYWORDS,
     "barrier($self, *, algorithm='auto', async_op=False, timeout=None, name=None)\n--\n\n"
     "Returns when all ranks have called it."},
    {"_run_message", as_function<run_message>(), METH_FASTCALL,
     "_run_message($self, sending, x, peer, tag, async_op=False, timeout=None, name=None, stream=None)\n--\n\n"
     "send or recv."},
    {"_run_vector", as_function<run_vector>(), METH_FASTCALL,
     "_run_vector($self, collective, x, out, counts, async_op=False, timeout=None, name=None, stream=None, "
     "algorithm='auto', op='sum', root=0, deterministic=False, factor=None)\n--\n\n"
     "A vector collective."},
    {"_start", as_function<start_collective>(), METH_FASTCALL,
     "_start($self, collective, inputs, outputs, lengths, options)\n--\n\n"
     "Starts a collective over lists of plain arrays and returns its Work. lengths: of the parts of all ranks."},
    {"_start_negotiated", as_function<start_negotiated>(), METH_FASTCALL,
     "_start_negotiated($self, collective, inputs, rows, expected, targets, is_list, per_rank, known, options)\n--\n\n"
     "Starts a vector collective over lists of plain arrays before which the ranks tell each other what they give, and "
     "returns its Work. rows: of each input, those for each rank, where it is split; expected: likewise those that "
     "come; "
     "known: what the first call of the exchange has brought, where that has been run."},
    {"_exchange_layouts", as_function<run_exchange>(), METH_FASTCALL,
     "_exchange_layouts($self, collective, arrays, rows, expected, is_list, known, options)\n--\n\n"
     "Only what comes before: returns the table of what the ranks give, the number of tensors, and whether the root of "
     "a "
     "scatter has given a list. Raises MismatchError where ranks disagree."},
    {"_start_message", as_function<start_message>(), METH_FASTCALL,
     "_start_message($self, sending, arrays, peer, tag, options)\n--\n\n"
     "Starts a message to or from another rank and returns its Work."},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef g_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(PyCommunicator, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot g_slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_communicator)},
                         {Py_tp_dealloc, reinterpret_cast<void*>(delete_communicator)},
                         {Py_tp_methods, g_methods},
                         {Py_tp_members, g_members},
                         {Py_tp_doc, const_cast<char*>("The engine's side of collectives.Communicator.")},
                         {0, nullptr}};

PyType_Spec g_spec = {"collectives._core.Communicator", sizeof(PyCommunicator), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, g_slots};

// Waits for callbacks with the interpreter unlocked, and lets signal handlers run now and then.
void close_interruptibly(Communicator& communicator) {
  constexpr double kSlice = 0.1;
  for (;;) {
    bool closed = false;
    {
      const Unlocked unlocked;
      closed = communicator.close(kSlice);
    }
    if (closed) {
      return;
    }
    if (PyErr_CheckSignals() != 0) {
      throw py::error_already_set();
    }
  }
}

}  // namespace

py::object make_handle(std::unique_ptr<Communicator> communicator) {
  auto owner = std::make_unique<std::shared_ptr<Communicator>>(std::move(communicator));
  PyObject* capsule = PyCapsule_New(owner.get(), kCapsule, [](PyObject* object) {
    delete static_cast<std::shared_ptr<Communicator>*>(PyCapsule_GetPointer(object, kCapsule));
  });
  if (capsule == nullptr) {
    throw py::error_already_set();
  }
  [[maybe_unused]] auto* owned = owner.release();  // by the capsule
  return py::reinterpret_steal<py::object>(capsule);
}

Communicator& communicator_of(py::handle object) {
  if (!PyObject_TypeCheck(object.ptr(), g_type)) {
    throw ArgumentTypeError("a Communicator is needed, not " + std::string(Py_TYPE(object.ptr())->tp_name));
  }
  return *reinterpret_cast<PyCommunicator*>(object.ptr())->communicator;
}

std::shared_ptr<Communicator> shared_communicator_of(py::handle object) {
  communicator_of(object);  // checks the type
  return *reinterpret_cast<PyCommunicator*>(object.ptr())->owner;
}

bool run_to_end(Communicator& communicator, const Call& call) {
  try {
    std::shared_ptr<Work> work;
    if (!run(communicator, call, work)) {
      if (!wait_interruptibly(communicator, work)) {
        return false;
      }
      communicator.finish_run(std::move(work));
    }
    return true;
  } catch (...) {
    set_python_error();
    return false;
  }
}

bool wait_interruptibly(Communicator& communicator, const std::shared_ptr<Work>& work) {
  constexpr double kSlice = 0.1;
  for (;;) {
    bool done = false;
    {
      const Unlocked unlocked;
      done = communicator.wait(*work, kSlice);
    }
    if (done) {
      return true;
    }
    if (PyErr_CheckSignals() != 0) {
      communicator.interrupt(interruption());
      return false;
    }
  }
}

void bind_communicator(py::module_& m) {
  g_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_spec));
  if (g_type == nullptr) {
    throw py::error_already_set();
  }
  m.attr("Communicator") = py::handle(reinterpret_cast<PyObject*>(g_type));
  m.def("_close", [](py::handle c) {
    Communicator& communicator = communicator_of(c);
    finish_unattended(communicator);
    close_interruptibly(communicator);
    release_dropped();
    CallbackPool::instance().retire();
  });
  m.def("_describe", [](py::handle c) {
    const Communicator& communicator = communicator_of(c);
    py::dict result;
    result["rank"] = communicator.rank();
    result["size"] = communicator.size();
    result["host"] = communicator.topology().host;
    result["closed"] = communicator.closed();
    result["failed"] = communicator.failed();
    result["timeout"] = communicator.options().timeout_s;
    result["compare_shapes"] = communicator.options().compare_shapes;
    result["id"] = communicator.options().id;
    result["world_rank"] = communicator.members().world_rank(communicator.rank());
    return result;
  });
  m.def(
      "_call_options",
      [] {
        std::vector<std::string> names;
        for (const CallOption& option : kCallOptions) {
          names.emplace_back(option.name);
        }
        return names;
      },
      "The options of a call, in the order in which methods take them by position.");
  m.def("_bytes_by_transport", [](py::handle c) {
    const Communicator& communicator = communicator_of(c);
    std::map<std::string, std::int64_t> found;
    {
      const Unlocked unlocked;  // it waits for the lock of the engine
      found = communicator.bytes_by_transport();
    }
    py::dict result;
    for (const auto& [transport, bytes] : found) {
      result[py::str(transport)] = bytes;
    }
    return result;
  });
  m.def(
      "_number_of", [](py::handle c) { return number_of(shared_communicator_of(c)); },
      "The number by which native ops of other libraries find the communicator in this process.");
  m.def(
      "_renumber", [](std::int64_t number, py::handle c) { renumber(number, shared_communicator_of(c)); },
      "Gives the number of a communicator to the one that replaces it.");
  m.def("_flag_latency", [](py::handle c, int peer, int rounds, double timeout_s) {
    Communicator& communicator = communicator_of(c);
    const Unlocked unlocked;
    return flag_latency(communicator.domain(), communicator.rank(), communicator.size(), peer, rounds, timeout_s);
  });
  m.def("_abandon", [](py::handle c, const std::string& why) {
    Communicator& communicator = communicator_of(c);
    const Unlocked unlocked;
    communicator.abandon(why);
  });
  m.def("_use_heap", [](py::handle c, std::size_t bytes) {
    Communicator& communicator = communicator_of(c);
    const Unlocked unlocked;
    communicator.use_heap(bytes);
  });
  m.def("_heap", [](py::handle c) {
    const Domain* domain = communicator_of(c).domain();
    if (domain == nullptr) {
      return py::make_tuple(std::uintptr_t{0}, std::size_t{0});
    }
    return py::make_tuple(reinterpret_cast<std::uintptr_t>(domain->heap(domain->rank())), domain->heap_bytes());
  });
  m.def("_memory_is_counted", &memory_is_counted,
        "Whether the system limits how much memory is reserved (vm.overcommit_memory = 2).");
  m.def("_reserve_heap", [](py::handle c, std::size_t offset, std::size_t bytes) {
    const Communicator& communicator = communicator_of(c);
    const Unlocked unlocked;
    communicator.engine()->memory()->reserve(communicator.domain()->heap(communicator.domain()->rank()) + offset,
                                             bytes);
  });
}

}  // namespace collectives
