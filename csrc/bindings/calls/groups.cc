// Making groups. By all ranks of the parent: the steps of one rank, between which python/collectives/_calls/groups.py
// exchanges their results. By the members alone: the whole, which waits with the interpreter unlocked, and lets signal
// handlers (Ctrl-C) run now and then.

#include <pybind11/stl.h>

#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/calls/communicator.h"
#include "bindings/calls/unlocked.h"
#include "engine/groups/meeting.h"
#include "engine/groups/reservation.h"

namespace collectives {
namespace {

namespace py = pybind11;

std::uint32_t propose(py::handle parent) {
  const Communicator& communicator = communicator_of(parent);
  communicator.refuse_after_fork();
  const Unlocked unlocked;
  const std::lock_guard guard(communicator.engine()->lock());
  return communicator.engine()->propose_number();
}

std::unique_ptr<Reservation> reserve(py::handle parent, std::uint32_t number, const std::vector<int>& members) {
  const Communicator& communicator = communicator_of(parent);
  const Unlocked unlocked;
  return std::make_unique<Reservation>(communicator, number, members);
}

std::tuple<bool, bool, bool, std::uint64_t> state(const Reservation& r) {
  return {r.claimed(), r.reserved().room, r.reserved().heap, r.reserved().offset};
}

py::object make(Reservation& reservation, const std::vector<std::tuple<bool, std::uint64_t>>& members) {
  std::vector<ReservedSegment> segments;
  for (const auto& [heap, offset] : members) {
    segments.push_back({true, heap, offset});
  }
  std::unique_ptr<Communicator> made;
  {
    const Unlocked unlocked;
    made = reservation.make(segments);
  }
  return make_handle(std::move(made));
}

std::tuple<py::object, std::vector<int>> meet(py::handle object, std::vector<int> members, std::uint64_t high,
                                              std::uint64_t low, double patience) {
  constexpr double kSlice = 0.1;
  Communicator& parent = communicator_of(object);
  std::unique_ptr<Meeting, UnlockedDelete<Meeting>> meeting;
  {
    const Unlocked unlocked;
    meeting.reset(new Meeting(parent, std::move(members), {high, low}, patience));
  }
  for (bool over = false; !over;) {
    {
      const Unlocked unlocked;
      over = meeting->wait(kSlice);
    }
    if (!over && PyErr_CheckSignals() != 0) {
      throw py::error_already_set();
    }
  }
  std::unique_ptr<Communicator> made;
  {
    const Unlocked unlocked;
    made = meeting->finish();
  }
  return {made == nullptr ? py::object(py::none()) : make_handle(std::move(made)), meeting->full()};
}

}  // namespace

void bind_groups(py::module_& m) {
  py::class_<Reservation>(m, "Reservation", "What a rank has reserved for a group that is being made.")
      .def("state", &state, "What the other ranks need to know: claimed, room, heap, offset of the segment.")
      .def("cancel", &Reservation::cancel, "Releases it: no rank will make the group.")
      .def("make", &make, py::arg("segments"), "The communicator; `segments` are (heap, offset) of all members.");
  m.def("_propose", &propose, "A number for a new communicator.");
  m.def("_reserve", &reserve, "Claims the number, and memory for the group of these ranks of the parent.");
  m.def("_meet", &meet, py::arg("parent"), py::arg("members"), py::arg("high"), py::arg("low"), py::arg("patience"),
        "A communicator that these ranks of the parent make alone, or None and those that have no memory for it. high, "
        "low: by which they know the group.");
}

}  // namespace collectives
