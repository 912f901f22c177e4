#include "bindings/setup/recorder.h"

#include <pybind11/stl.h>

#include <string>

#include "bindings/calls/communicator.h"
#include "bindings/calls/unlocked.h"
#include "engine/failure/stacks.h"
#include "recorder/recorder_text.h"

namespace collectives {
namespace {

namespace py = pybind11;

std::string json_of(const Recorder& recorder, const std::string& why) {
  std::string text;
  TextWriter out(
      [](void* to, const char* piece, std::size_t bytes) { static_cast<std::string*>(to)->append(piece, bytes); },
      &text);
  write_json(recorder, why, {}, out);
  out.flush();
  return text;
}

// The JSON of every recorder of this process.
std::vector<std::string> all_json(const std::string& why) {
  struct Found {
    const std::string& why;
    std::vector<std::string> texts;
  } found{why, {}};
  const Unlocked unlocked;
  Recorder::for_each(
      [](const Recorder& recorder, void* to) {
        auto& all = *static_cast<Found*>(to);
        all.texts.push_back(json_of(recorder, all.why));
      },
      &found);
  return found.texts;
}

}  // namespace

void bind_recorder(py::module_& m) {
  m.def(
      "_recorder_json", [](py::handle c) { return json_of(communicator_of(c).engine()->recorder(), "a call"); },
      "What the recorder of the rank holds, as JSON.");
  m.def("_all_recorders_json", &all_json, "The same for every rank of this process.", py::arg("why"));
  m.def("_open_stack_page", &open_stack_page, py::arg("machine"),
        "Makes the page in which this process shows its Python stack; its descriptor, or -1.");
  m.def("_stack_place", &own_stack_place, "How others on this machine find that page.");
  m.def("_stack_signal", &stack_signal, "The signal by which others ask for the stack.");
  m.def("_signal_is_free", &signal_is_free, "Whether the signal has no handler in this process.", py::arg("signal"));
  m.def("_take_over_stack_signal", &take_over_stack_signal,
        "Answers that signal by the handler that faulthandler has set.");
  m.def("_dump_on_signal", &dump_on_signal, "Has SIGUSR2 dump the recorders of this process.");
  m.def("_set_recorder_folder", &set_recorder_folder, "Where dumps go.", py::arg("folder"));
}

}  // namespace collectives
