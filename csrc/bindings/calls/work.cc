#include "bindings/calls/work.h"

#include <pthread.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "bindings/arrays/arrays.h"
#include "bindings/arrays/torch_tensors.h"
#include "bindings/calls/callback_pool.h"
#include "bindings/calls/layouts.h"
#include "bindings/calls/negotiated.h"
#include "bindings/calls/options.h"
#include "bindings/calls/unlocked.h"
#include "bindings/setup/errors.h"
#include "bindings/setup/kept.h"
#include "core/error.h"
#include "core/grow.h"
#include "core/lock.h"

namespace collectives {
namespace {

namespace py = pybind11;

// False after timeout_s, where it is not negative. Signal handlers run now and then.
bool wait_for(Communicator& communicator, Work& work, double timeout_s) {
  constexpr double kSlice = 0.1;
  const auto start = Clock::now();
  for (;;) {
    const double passed = std::chrono::duration<double>(Clock::now() - start).count();
    const double left = timeout_s < 0 ? kSlice : std::max(0.0, timeout_s - passed);
    bool done = false;
    {
      const Unlocked unlocked;
      done = communicator.wait(work, std::min(left, kSlice));
    }
    if (done) {
      return true;
    }
    if (timeout_s >= 0 && left <= kSlice) {
      return false;
    }
    if (PyErr_CheckSignals() != 0) {
      communicator.interrupt(interruption());
      throw py::error_already_set();
    }
  }
}

// Guards the list of dropped works, and who drops the references of one. No Python code runs under it.
Lock g_lock;
// A forked child must not find it held by a thread that it does not have.
[[maybe_unused]] const int g_handlers =
    pthread_atfork([] { g_lock.lock(); }, [] { g_lock.unlock(); }, [] { g_lock.unlock(); });

// A work, with references to the arrays that the engine uses until it is done, also when the handle has been dropped.
struct PyWork {
  py::object owner;  // the communicator
  py::list inputs;
  py::list outputs;
  Communicator* communicator = nullptr;
  std::shared_ptr<Work> work;
  std::shared_ptr<const Outcome> outcome;  // of a call whose ranks tell each other first what they give

  // Whether the work is done; if so, drops the references to the arrays. A tensor may have this handle as an attribute,
  // and the garbage collector would not find that cycle.
  bool done() {
    if (!work->finished()) {
      return false;
    }
    // Two threads may ask at once. The references go without the lock, since that may run Python code.
    py::list dropped[2] = {py::reinterpret_steal<py::list>(py::handle()),
                           py::reinterpret_steal<py::list>(py::handle())};
    const std::lock_guard guard(g_lock);
    std::swap(dropped[0], inputs);
    std::swap(dropped[1], outputs);
    return true;
  }

  bool wait(double timeout_s) {
    struct Release {
      PyWork& work;
      ~Release() { work.done(); }
    } const release{*this};
    return wait_for(*communicator, *work, timeout_s);
  }

  PyWork* next = nullptr;  // in the list of dropped works
};

// Works in flight whose handles were dropped. The number can be read without the lock.
PyWork* g_dropped = nullptr;
std::atomic<std::size_t> g_dropped_count{0};
std::size_t g_skipped = 0;  // calls of release_dropped() in a row that did nothing
// Up to this many, the list is searched at every call; a longer list of n works only at every n-th call.
constexpr std::size_t kFewDropped = 64;

// When a handle is dropped while the engine still uses its arrays, they must not be freed; and waiting for other ranks
// could deadlock, since they may wait for the next call of this thread. So the work goes to a list, without allocating,
// which could fail.
struct Drop {
  void operator()(PyWork* work) const {
    if (work->work != nullptr && !work->work->finished() && !work->communicator->engine()->forked()) {
      const std::lock_guard guard(g_lock);
      work->next = std::exchange(g_dropped, work);
      ++g_dropped_count;
    } else {
      delete work;
    }
  }
};
using WorkHandle = std::unique_ptr<PyWork, Drop>;

// How long closing a communicator waits for messages that nobody waits for and that have not begun to arrive: the
// sender may be about to send them, or may never do it.
constexpr std::chrono::seconds kReceiveTimeout(5);

// Removes the works for which `chosen` is true from the list of dropped works, and returns them.
template <typename Chosen>
std::vector<WorkHandle> extract_dropped(const Chosen& chosen) {
  std::vector<WorkHandle> extracted;
  const std::lock_guard guard(g_lock);
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

WorkHandle new_work(Communicator& communicator, PyObject* owner, PyObject* inputs, PyObject* outputs) {
  WorkHandle work(new PyWork);
  work->owner = py::reinterpret_borrow<py::object>(owner);
  work->inputs = py::reinterpret_borrow<py::object>(inputs);
  work->outputs = py::reinterpret_borrow<py::object>(outputs);
  work->communicator = &communicator;
  return work;
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

DType dtype_of_first(const py::list& arrays) {
  return arrays.empty() ? DType::kUInt8
                        : static_cast<DType>(dtype_of(reinterpret_cast<PyArrayObject*>(arrays[0].ptr())));
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
  const std::size_t count = g_dropped_count.load(std::memory_order_relaxed);
  const auto is_turn = [&] {
    const std::lock_guard guard(g_lock);
    const bool now = ++g_skipped >= count;
    g_skipped = now ? 0 : g_skipped;
    return now;
  };
  if (count > 0 && (count <= kFewDropped || is_turn())) {
    // Freed after all are out of the list: freeing may run Python code, which may come here again.
    extract_dropped([](const PyWork& work) { return work.work->finished(); });
  }
}

void finish_unattended(Communicator& communicator) {
  if (communicator.engine()->forked()) {
    return;
  }
  const auto dropped = extract_dropped([&](const PyWork& work) { return work.communicator == &communicator; });
  std::vector<std::shared_ptr<Work>> works;
  {
    const Unlocked unlocked;
    works = communicator.with_callbacks();
  }
  for (const WorkHandle& work : dropped) {
    works.push_back(work->work);
  }
  const auto receives = [](const Work& work) { return work.is_message() && !work.message.sending; };
  const auto finish = [&](Work& work, double timeout_s) {
    try {
      return wait_for(communicator, work, timeout_s);
    } catch (const CollectivesError&) {
      return true;  // the communicator has failed; nobody wants the error here
    }
  };
  for (const auto& work : works) {
    if (!receives(*work)) {
      finish(*work, -1);
    }
  }
  const auto until = Clock::now() + kReceiveTimeout;
  for (const auto& work : works) {
    const auto left = std::chrono::duration<double>(until - Clock::now()).count();
    if (receives(*work) && !finish(*work, std::max(0.0, left)) && !communicator.withdraw(*work)) {
      finish(*work, -1);  // the message has begun to arrive
    }
  }
}

PyObject* start_collective(PyObject* self, Communicator& communicator, PyObject* const* args, Py_ssize_t count) {
  enum : std::uint8_t { kCollective, kInputs, kOutputs, kLengths, kOptions, kArguments };
  check_count("_start", count, kArguments);
  release_dropped();
  const CallOptions options = options_of(args[kOptions]);
  WorkHandle work = new_work(communicator, self, args[kInputs], args[kOutputs]);
  const py::list& some = work->inputs.empty() ? work->outputs : work->inputs;  // a rank may have no inputs
  Call call;
  call.collective = parse_collective(py::handle(args[kCollective]).cast<std::string>());
  call.dtype = dtype_of_first(some);
  read_options(options, &call);
  if (call.root < 0 || call.root >= communicator.size()) {
    throw ArgumentError("root " + std::to_string(call.root) + " is out of range: the group has ranks 0 to " +
                        std::to_string(communicator.size() - 1));
  }
  call.algorithm =
      algorithm_number(call.problem(), py::handle(options.algorithm).cast<std::string>(), communicator.topology());
  call.input = spans(work->inputs);
  call.output = spans(work->outputs);
  if (is_vector(call.collective)) {
    call.lengths = py::handle(args[kLengths]).cast<std::vector<std::int64_t>>();
  } else {
    refuse_overlap(call.input, call.output, work->inputs.is(work->outputs));
    for (const py::handle item : some) {
      auto* const array = reinterpret_cast<PyArrayObject*>(item.ptr());
      call.shapes.add({PyArray_DIMS(array), static_cast<std::size_t>(PyArray_NDIM(array))});
    }
  }
  const bool async = is_async(options);
  {
    const Unlocked unlocked;
    work->work = communicator.post(call, async);
  }
  return py::cast(std::move(work)).release().ptr();
}

PyObject* start_negotiated(PyObject* self, Communicator& communicator, PyObject* const* args, Py_ssize_t count) {
  enum : std::uint8_t {
    kCollective,
    kInputs,
    kRows,
    kExpected,
    kOutputs,
    kIsList,
    kPerRank,
    kKnown,
    kOptions,
    kArguments
  };
  check_count("_start_negotiated", count, kArguments);
  release_dropped();
  const CallOptions options = options_of(args[kOptions]);
  const py::list none;
  const bool has_outputs = args[kOutputs] != Py_None;
  const auto per_rank = py::handle(args[kPerRank]).cast<std::pair<bool, bool>>();
  WorkHandle work = new_work(communicator, self, args[kInputs], has_outputs ? args[kOutputs] : none.ptr());
  Call call;
  call.collective = parse_collective(py::handle(args[kCollective]).cast<std::string>());
  call.dtype = dtype_of_first(work->inputs);
  read_options(options, &call);
  call.algorithm =
      algorithm_number(call.problem(), py::handle(options.algorithm).cast<std::string>(), communicator.topology());
  std::optional<Negotiated::Outputs> outputs;
  if (has_outputs) {
    outputs.emplace();
    outputs->descriptions = own_layouts(work->outputs, py::none(), py::none(), false).descriptions;
    for (const Span& span : spans(work->outputs)) {
      outputs->data.push_back(span.data);
    }
    outputs->per_rank = per_rank.second;
  }
  py::list described = work->inputs;
  if (per_rank.first) {
    described = work->inputs[py::slice(0, 1, 1)];
  }
  auto negotiated =
      std::make_unique<Negotiated>(call, communicator.rank(), communicator.size(),
                                   own_layouts(described, args[kRows], args[kExpected], args[kIsList] == Py_True),
                                   spans(work->inputs), std::move(outputs));
  work->outcome = negotiated->outcome();
  const bool as_told = args[kKnown] == Py_None || negotiated->know(as_table(args[kKnown]));
  const bool async = is_async(options);
  {
    const Unlocked unlocked;
    if (!as_told) {
      give_up_changed(communicator, call.collective);
    }
    Call first;
    try {
      const bool continues = negotiated->next(first);
      work->work = continues ? communicator.post(first, std::move(negotiated), async) : communicator.post(first, async);
    } catch (const Disagreement& found) {
      throw as_error(found, communicator.rank(), name(call.collective));
    }
  }
  return py::cast(std::move(work)).release().ptr();
}

PyObject* start_call(Communicator& communicator, PyObject* owner, Call call, PyObject* x, PyObject* out,
                     PyObject* result) {
  static constinit Kept kept;
  PyObject* const type =
      kept.get([] { return py::object(py::module_::import("collectives.work").attr("Work")).release().ptr(); });
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

PyObject* start_message(PyObject* self, Communicator& communicator, PyObject* const* args, Py_ssize_t count) {
  enum : std::uint8_t { kSending, kArrays, kPeer, kTag, kOptions, kArguments };  // peer: None for any
  check_count("_start_message", count, kArguments);
  release_dropped();
  const CallOptions options = options_of(args[kOptions]);
  WorkHandle work = new_work(communicator, self, args[kArrays], args[kArrays]);
  Call call;
  call.collective = Collective::kMessage;
  call.dtype = dtype_of_first(work->inputs);
  read_options(options, &call);
  call.message = {args[kPeer] == Py_None ? Message::kAny : py::handle(args[kPeer]).cast<int>(),
                  py::handle(args[kTag]).cast<int>(), args[kSending] == Py_True};
  call.input = call.output = spans(work->inputs);
  if (!call.message.sending) {
    refuse_overlap(call.input, call.output, true);
  }
  const bool async = is_async(options);
  {
    const Unlocked unlocked;
    work->work = communicator.post_message(call, async);
  }
  return py::cast(std::move(work)).release().ptr();
}

void bind_work(py::module_& m) {
  m.def(
      "_stop_callbacks", [] { CallbackPool::instance().stop(); },
      "For the end of Python: no callback begins any more, and those that run have returned.");
  py::class_<PyWork, WorkHandle>(m, "Work", "The engine's side of collectives.Work.")
      .def("wait", &PyWork::wait, py::arg("timeout") = -1.0,
           "Waits for the end of the collective and raises its error. False after `timeout` seconds (never when < 0).")
      .def(
          "done", [](PyWork& w) { return w.done(); }, "True when the collective has ended.")
      .def(
          "add_done_callback",
          [](const PyWork& w, py::object handle, py::object function) {
            CallbackPool::instance().add(*w.communicator, w.work, std::move(function), std::move(handle));
          },
          py::arg("handle"), py::arg("function"),
          "Calls function(handle) when the collective has ended, on a thread for callbacks.")
      .def_property_readonly(
          "algorithm",
          [](const PyWork& w) {
            const Algorithm* algorithm = nullptr;
            {
              const Unlocked unlocked;
              algorithm = w.communicator->algorithm_of(*w.work);
            }
            const bool alone = w.communicator->size() == 1;
            return std::string(alone ? "alone" : algorithm == nullptr ? "message" : algorithm->name);
          },
          "The name of the algorithm that was chosen.")
      .def(
          "outcome",
          [](const PyWork& w) {
            return py::make_tuple(arrays_of(*w.outcome), w.outcome->shapes, w.outcome->came, w.outcome->is_list);
          },
          "Of a call from _start_negotiated that is over: the arrays that were made for the result, none where those "
          "of the caller are used; the shapes of the result; whether the root of a scatter has given a list.")
      .def_property_readonly(
          "peer",
          [](const PyWork& w) {
            const int peer = w.work->message.peer;
            return peer < 0 ? std::nullopt : std::optional<int>(peer);
          },
          "The other rank of a message; None for a collective, and for a receive from any rank that has no message.")
      .def_property_readonly(
          "sequence",
          [](const PyWork& w) {
            const Unlocked unlocked;
            return w.communicator->sequence_of(*w.work);
          },
          "The number of the collective in its communicator, from 0.");
}

}  // namespace collectives
