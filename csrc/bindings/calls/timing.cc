// Timing without the interpreter: one loop times the engine's calls, or C functions of other libraries.

#include "bindings/calls/timing.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bindings/arrays/arrays.h"
#include "bindings/calls/communicator.h"
#include "bindings/calls/options.h"
#include "bindings/calls/unlocked.h"
#include "core/error.h"
#include "engine/plan.h"

namespace collectives {
namespace {

namespace py = pybind11;

constexpr std::size_t kMostArguments = 8;
// One type fits every function of up to this many integers and pointers: in the calling conventions of the supported
// platforms each argument has a register or eight bytes of the stack, narrower ones are its low part, and a function
// ignores arguments that it does not have.
using Function = int (*)(std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t,
                         std::uintptr_t, std::uintptr_t);

// The memory of writable arrays of one dtype.
std::vector<Span> spans_of(const std::vector<py::object>& arrays, DType* dtype) {
  std::vector<Span> spans;
  int type = -1;
  for (const py::object& item : arrays) {
    auto* array = reinterpret_cast<PyArrayObject*>(item.ptr());
    const bool usable = PyArray_Check(array) && is_plain(array) && PyArray_ISWRITEABLE(array) && dtype_of(array) >= 0;
    if (!usable || (type >= 0 && dtype_of(array) != type)) {
      throw ArgumentError("timing needs contiguous arrays of one element type that can be written");
    }
    type = dtype_of(array);
    *dtype = static_cast<DType>(type);
    spans.push_back(span_of(array));
  }
  return spans;
}

// Writes every byte by ordinary stores, so that it is in this core's caches: a large memset may bypass them.
void rewrite(const Span& span) {
  constexpr std::int64_t kPiece = 4096;
  for (std::int64_t at = 0; at < span.bytes; at += kPiece) {
    std::memset(span.data + at, 0, static_cast<std::size_t>(std::min(kPiece, span.bytes - at)));
  }
}

void run(Communicator& communicator, const Call& call) {
  std::shared_ptr<Work> work;
  if (!communicator.run(call, work)) {
    communicator.wait(*work, -1);
    communicator.finish_run(std::move(work));
  }
}

// The nanoseconds of each round of `batch` calls. Before each round the buffers are rewritten, `before` is called, and
// the ranks run a barrier.
template <typename Before, typename Timed>
std::vector<std::int64_t> time_rounds(Communicator& communicator, const std::vector<Span>& spans, int rounds, int batch,
                                      const Before& before, const Timed& timed) {
  Call barrier;
  barrier.collective = Collective::kBarrier;
  std::vector<std::int64_t> times;
  times.reserve(rounds);
  if (rounds == 0) {
    timed();
  }
  for (int round = 0; round < rounds; ++round) {
    for (const Span& span : spans) {
      rewrite(span);
    }
    before();
    run(communicator, barrier);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < batch; ++i) {
      timed();
    }
    times.push_back(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
  }
  return times;
}

std::vector<std::int64_t> time_collective(py::handle c, const std::vector<py::object>& arrays, int rounds, int batch,
                                          const std::string& collective, const py::object& out, py::handle record) {
  Communicator& communicator = communicator_of(c);
  const CallOptions options = options_of(record);
  Call call;
  call.collective = parse_collective(collective);
  read_options(options, &call);
  call.input = spans_of(arrays, &call.dtype);
  call.algorithm =
      algorithm_number(call.problem(), py::handle(options.algorithm).cast<std::string>(), communicator.topology());
  call.output = out.is_none() ? call.input : spans_of({out}, &call.dtype);
  const Unlocked unlocked;
  return time_rounds(communicator, call.input, rounds, batch, [] {}, [&] { run(communicator, call); });
}

std::vector<std::int64_t> time_function(py::handle c, const std::vector<py::object>& arrays, int rounds, int batch,
                                        std::uintptr_t address, const std::vector<std::uintptr_t>& arguments,
                                        std::uintptr_t before, py::handle /*held*/) {
  Communicator& communicator = communicator_of(c);
  DType dtype = DType::kFloat32;
  const std::vector<Span> spans = spans_of(arrays, &dtype);
  if (address == 0 || arguments.size() > kMostArguments) {
    throw ArgumentError("a function of at most " + std::to_string(kMostArguments) +
                        " arguments is needed; this one, at " + std::to_string(address) + ", has " +
                        std::to_string(arguments.size()));
  }
  std::array<std::uintptr_t, kMostArguments> a{};
  std::ranges::copy(arguments, a.begin());
  const auto call = [&](std::uintptr_t function) {
    if (const int status = reinterpret_cast<Function>(function)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
        status != 0) {
      throw ArgumentError("the function that is timed returned " + std::to_string(status));
    }
  };
  const auto prepare = [&] {
    if (before != 0) {
      call(before);
    }
  };
  const Unlocked unlocked;
  return time_rounds(communicator, spans, rounds, batch, prepare, [&] { call(address); });
}

}  // namespace

void bind_timing(py::module_& m) {
  m.def(
      "_time_collective", time_collective,
      "Nanoseconds of each round: the arrays are rewritten, the ranks meet, and the collective runs `batch` times. No "
      "rounds: one call on what the arrays hold. In place where the argument before the options is None, else the "
      "array to write.");
  m.def(
      "_time_function", time_function,
      "The same for a C function of up to eight pointers or integers that returns 0 when all is well. Another one of "
      "the "
      "same arguments, where it is not 0, is called before the ranks meet. The last argument is only held meanwhile.");
}

}  // namespace collectives
