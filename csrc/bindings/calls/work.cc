#include "bindings/calls/work.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <utility>

#include "bindings/arrays/arrays.h"
#include "bindings/arrays/torch_tensors.h"
#include "bindings/calls/unlocked.h"
#include "bindings/setup/errors.h"
#include "core/error.h"
#include "core/grow.h"

namespace collectives {
namespace {

namespace py = pybind11;

// A work, with references to the arrays that the engine uses until it is done, also when the handle has been dropped.
struct PyWork {
  py::object owner;  // the communicator
  py::list inputs;
  py::list outputs;
  Communicator* communicator = nullptr;
  std::shared_ptr<Work> work;

  // Whether the work is done; if so, drops the references to the arrays. A tensor may have this handle as an attribute,
  // and the garbage collector would not find that cycle.
  bool done() {
    if (!work->finished()) {
      return false;
    }
    inputs.release().dec_ref();
    outputs.release().dec_ref();
    return true;
  }

  bool wait(double timeout_s) {
    struct Release {
      PyWork& work;
      ~Release() { work.done(); }
    } const release{*this};
    constexpr double kSlice = 0.1;
    const auto start = Clock::now();
    for (;;) {
      const double passed = std::chrono::duration<double>(Clock::now() - start).count();
      const double left = timeout_s < 0 ? kSlice : std::max(0.0, timeout_s - passed);
      bool done = false;
      {
        const Unlocked unlocked;
        done = communicator->wait(*work, std::min(left, kSlice));
      }
      if (done) {
        return true;
      }
      if (timeout_s >= 0 && left <= kSlice) {
        return false;
      }
      if (PyErr_CheckSignals() != 0) {
        communicator->interrupt(interruption());
        throw py::error_already_set();
      }
    }
  }

  PyWork* next = nullptr;  // in the list of dropped works
};

// Works in flight whose handles were dropped. Guarded by the interpreter's lock.
PyWork* g_dropped = nullptr;
std::size_t g_dropped_count = 0;
std::size_t g_skipped = 0;  // calls of release_dropped() in a row that did nothing
// Up to this many, the list is searched at every call; a longer list of n works only at every n-th call.
constexpr std::size_t kFewDropped = 64;

// When a handle is dropped while the engine still uses its arrays, they must not be freed; and waiting for other ranks
// could deadlock, since they may wait for the next call of this thread. So the work goes to a list, without allocating,
// which could fail.
struct Drop {
  void operator()(PyWork* work) const {
    if (work->work != nullptr && !work->work->finished() && !work->communicator->engine()->forked()) {
      work->next = std::exchange(g_dropped, work);
      ++g_dropped_count;
    } else {
      delete work;
    }
  }
};
using WorkHandle = std::unique_ptr<PyWork, Drop>;

// How long closing a communicator waits for messages whose handles were dropped and that have not begun to arrive: the
// sender may be about to send them, or may never do it.
constexpr std::chrono::seconds kReceiveTimeout(5);

// Removes the works for which `chosen` is true from the list of dropped works, and returns them.
template <typename Chosen>
std::vector<WorkHandle> extract_dropped(const Chosen& chosen) {
  std::vector<WorkHandle> extracted;
  for (PyWork** at = &g_dropped; *at != nullptr;) {
    if (chosen(**at)) {
      make_room(extracted);
      PyWork* const work = *at;
      *at = std::exchange(work->next, nullptr);
      --g_dropped_count;
      extracted.emplace_back(work);
    } else {
      at = &(*at)->next;
    }
  }
  return extracted;
}

// Appends objects that keep the memory of a plain array, or of a tuple of them. For tensors an alias, since the caller
// may give a tensor other memory (`x.data = y`).
void hold(py::list& list, PyObject* x) {
  if (x == nullptr || x == Py_None) {
    return;
  }
  if (PyTuple_CheckExact(x)) {
    for (const py::handle item : py::reinterpret_borrow<py::tuple>(x)) {
      hold(list, item.ptr());
    }
    return;
  }
  const py::object memory = PyArray_CheckExact(x) ? py::reinterpret_borrow<py::object>(x) : alias_of_tensor(x);
  list.append(memory);
}

std::vector<Span> spans(const py::list& arrays) {
  std::vector<Span> result;
  for (const py::handle array : arrays) {
    result.push_back(span_of(reinterpret_cast<PyArrayObject*>(array.ptr())));
  }
  return result;
}

// Throws ArgumentError where tensors of one call share memory that is written, since the result would depend on the
// order of steps. A tensor may be its own output.
void refuse_overlap(const std::vector<Span>& inputs, const std::vector<Span>& outputs, bool in_place) {
  struct Piece {
    const std::byte* begin;
    const std::byte* end;
    std::size_t tensor;
    bool written;
  };
  std::vector<Piece> pieces;
  const auto add = [&](const std::vector<Span>& spans, bool written) {
    for (std::size_t i = 0; i < spans.size(); ++i) {
      if (spans[i].bytes > 0) {
        pieces.push_back({spans[i].data, spans[i].data + spans[i].bytes, i, written});
      }
    }
  };
  add(outputs, true);
  if (!in_place) {
    add(inputs, false);
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  const Piece* reach[2] = {nullptr, nullptr};  // of inputs and of outputs: the piece with the highest end so far
  for (const Piece& piece : pieces) {
    for (const Piece* before : reach) {
      if (before != nullptr && before->end > piece.begin && (before->written || piece.written) &&
          (before->tensor != piece.tensor || before->written == piece.written)) {
        const auto [first, second] = std::minmax(before->tensor, piece.tensor);
        throw ArgumentError("tensor " + std::to_string(first) + " and tensor " + std::to_string(second) +
                            " share memory that would be written; pass arrays that do not overlap");
      }
    }
    const Piece*& furthest = reach[piece.written ? 1 : 0];
    furthest = furthest == nullptr || piece.end > furthest->end ? &piece : furthest;
  }
}

}  // namespace

void release_dropped() {
  if (g_dropped != nullptr && (g_dropped_count <= kFewDropped || ++g_skipped >= g_dropped_count)) {
    g_skipped = 0;
    // Freed after all are out of the list: freeing may run Python code, which may come here again.
    extract_dropped([](const PyWork& work) { return work.work->finished(); });
  }
}

void finish_dropped(Communicator& communicator) {
  const auto own = extract_dropped(
      [&](const PyWork& work) { return work.communicator == &communicator && !communicator.engine()->forked(); });
  const auto receives = [](const WorkHandle& work) { return work->work->is_message() && !work->work->message.sending; };
  const auto finish = [](PyWork& work, double timeout_s) {
    try {
      return work.wait(timeout_s);
    } catch (const CollectivesError&) {
      return true;  // the communicator has failed; the handle of this work is gone, so its error is not wanted
    }
  };
  for (const WorkHandle& work : own) {
    if (!receives(work)) {
      finish(*work, -1);
    }
  }
  const auto until = Clock::now() + kReceiveTimeout;
  for (const WorkHandle& work : own) {
    const auto left = std::chrono::duration<double>(until - Clock::now()).count();
    if (receives(work) && !finish(*work, std::max(0.0, left)) && !communicator.withdraw(*work->work)) {
      finish(*work, -1);  // the message has begun to arrive
    }
  }
}

PyObject* start_general(Communicator& communicator, PyObject* owner, PyObject* args) {
  release_dropped();
  const auto tuple = py::reinterpret_borrow<py::tuple>(args);
  const auto kind = parse_collective(tuple[0].cast<std::string>());
  WorkHandle work(new PyWork);
  work->owner = py::reinterpret_borrow<py::object>(owner);
  work->inputs = tuple[1];
  work->outputs = tuple[2];
  work->communicator = &communicator;
  Call call;
  call.collective = kind;
  const py::list& some = work->inputs.empty() ? work->outputs : work->inputs;  // a rank may have no inputs
  call.dtype =
      some.empty() ? DType::kUInt8 : static_cast<DType>(dtype_of(reinterpret_cast<PyArrayObject*>(some[0].ptr())));
  call.op = parse_op(tuple[3].cast<std::string>());
  call.root = tuple[4].cast<int>();
  call.deterministic = tuple[6].cast<bool>();
  if (call.root < 0 || call.root >= communicator.size()) {
    throw ArgumentError("root " + std::to_string(call.root) + " is out of range: the group has ranks 0 to " +
                        std::to_string(communicator.size() - 1));
  }
  call.algorithm = algorithm_number(call.problem(), tuple[5].cast<std::string>(), communicator.topology());
  call.timeout_s = tuple[7].is_none() ? -1 : tuple[7].cast<double>();
  call.name = tuple[8].is_none() ? std::string() : tuple[8].cast<std::string>();
  call.input = spans(work->inputs);
  call.output = spans(work->outputs);
  if (is_vector(kind)) {
    call.lengths = tuple[10].cast<std::vector<std::int64_t>>();
  } else {
    refuse_overlap(call.input, call.output, work->inputs.is(work->outputs));
    for (const py::handle item : some) {
      auto* const array = reinterpret_cast<PyArrayObject*>(item.ptr());
      call.shapes.add({PyArray_DIMS(array), static_cast<std::size_t>(PyArray_NDIM(array))});
    }
  }
  call.factor = tuple[11].is_none() ? 1 : tuple[11].cast<double>();
  const bool async = tuple[9].cast<bool>();
  {
    const Unlocked unlocked;
    work->work = communicator.post(call, async);
  }
  return py::cast(std::move(work)).release().ptr();
}

PyObject* start_call(Communicator& communicator, PyObject* owner, Call call, PyObject* x, PyObject* out,
                     PyObject* result) {
  // Not a static initialiser: a thread that waits for another one to finish it would hold the interpreter's lock.
  static PyObject* type = nullptr;
  if (type == nullptr) {
    type = py::object(py::module_::import("collectives.work").attr("Work")).release().ptr();
  }
  WorkHandle work(new PyWork);
  work->owner = py::reinterpret_borrow<py::object>(owner);
  hold(work->inputs, x);
  hold(work->outputs, out);
  work->communicator = &communicator;
  {
    const Unlocked unlocked;
    work->work =
        call.collective == Collective::kMessage ? communicator.post_message(call, true) : communicator.post(call, true);
  }
  const py::object begun = py::cast(std::move(work));
  PyObject* arguments[] = {begun.ptr(), Py_None, result};
  return PyObject_Vectorcall(type, arguments, std::size(arguments), nullptr);
}

// (peer, tag, sending, arrays, timeout, name, is_async)
PyObject* start_message(Communicator& communicator, PyObject* owner, PyObject* args) {
  release_dropped();
  const auto tuple = py::reinterpret_borrow<py::tuple>(args);
  WorkHandle work(new PyWork);
  work->owner = py::reinterpret_borrow<py::object>(owner);
  work->inputs = work->outputs = tuple[3];
  work->communicator = &communicator;
  Call call;
  call.collective = Collective::kMessage;
  call.message = {tuple[0].cast<int>(), tuple[1].cast<int>(), tuple[2].cast<bool>()};
  call.dtype = work->inputs.empty()
                   ? DType::kUInt8
                   : static_cast<DType>(dtype_of(reinterpret_cast<PyArrayObject*>(work->inputs[0].ptr())));
  call.input = call.output = spans(work->inputs);
  if (!call.message.sending) {
    refuse_overlap(call.input, call.output, true);
  }
  call.timeout_s = tuple[4].is_none() ? -1 : tuple[4].cast<double>();
  call.name = tuple[5].is_none() ? std::string() : tuple[5].cast<std::string>();
  const bool async = tuple[6].cast<bool>();
  {
    const Unlocked unlocked;
    work->work = communicator.post_message(call, async);
  }
  return py::cast(std::move(work)).release().ptr();
}

void bind_work(py::module_& m) {
  py::class_<PyWork, WorkHandle>(m, "Work", "The engine's side of collectives.Work.")
      .def("wait", &PyWork::wait, py::arg("timeout") = -1.0,
           "Waits for the end of the collective and raises its error. False after `timeout` seconds (never when < 0).")
      .def(
          "done", [](PyWork& w) { return w.done(); }, "True when the collective has ended.")
      .def_property_readonly(
          "algorithm",
          [](const PyWork& w) {
            const Algorithm* algorithm = w.work->plan->algorithm;
            const bool alone = w.communicator->size() == 1;
            return std::string(alone ? "alone" : algorithm == nullptr ? "message" : algorithm->name);
          },
          "The name of the algorithm that was chosen.")
      .def_property_readonly(
          "sequence", [](const PyWork& w) { return w.work->sequence; },
          "The number of the collective in its communicator, from 0.");
}

}  // namespace collectives
