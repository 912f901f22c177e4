// The extension module collectives._core.

#define COLLECTIVES_IMPORT_NUMPY
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <vector>

#include "bindings/arrays/arrays.h"
#include "bindings/arrays/dlpack.h"
#include "bindings/arrays/numpy_api.h"
#include "bindings/calls/arguments.h"
#include "bindings/calls/communicator.h"
#include "bindings/calls/layouts.h"
#include "bindings/calls/messages.h"
#include "bindings/calls/predictions.h"
#include "bindings/calls/timing.h"
#include "bindings/calls/work.h"
#include "bindings/devices/device.h"
#include "bindings/devices/device_memory.h"
#include "bindings/devices/device_peers.h"
#include "bindings/devices/nccl.h"
#include "bindings/devices/replicas.h"
#include "bindings/setup/errors.h"
#include "bindings/setup/recorder.h"
#include "bindings/testing/reduce_testing.h"
#include "bindings/testing/verify_testing.h"
#include "core/environment.h"
#include "reduce/reducer.h"

namespace py = pybind11;

// It needs no lock of the interpreter: docs/packaging.md lists what guards each static of the bindings.
PYBIND11_MODULE(_core, m, py::mod_gil_not_used()) {
  m.doc() = "The engine of collectives. Use the package, not this module.";
  if (_import_array() < 0) {
    throw py::error_already_set();
  }
  collectives::load_dtypes();
  collectives::load_names();
  collectives::register_errors();
  collectives::bind_layouts(m);
  collectives::bind_work(m);
  collectives::bind_communicator(m);
  collectives::bind_messages(m);
  collectives::bind_predictions(m);
  collectives::bind_connect(m);
  collectives::bind_groups(m);
  collectives::bind_shrink(m);
  collectives::bind_replicas(m);
  collectives::bind_device(m);
  collectives::bind_device_memory(m);
  collectives::bind_device_peers(m);
  collectives::bind_dlpack(m);
  collectives::bind_nccl(m);
  collectives::bind_recorder(m);
  collectives::bind_reduce_testing(m);
  collectives::bind_verify_testing(m);
  collectives::bind_timing(m);
  m.def(
      "isa", [] { return std::string(collectives::best_reducer().isa); },
      "The instruction set of the reducers in use.");
  m.def(
      "environment_variables",
      [] {
        std::vector<std::map<std::string, std::string>> table;
        for (const auto& [name, accepted, fallback, meaning, reader] : collectives::kEnvironmentVariables) {
          table.push_back({{"name", std::string(name)},
                           {"accepted", std::string(accepted)},
                           {"default", std::string(fallback)},
                           {"meaning", std::string(meaning)},
                           {"reader", std::string(reader)}});
        }
        return table;
      },
      "The environment variables that the library knows: name, accepted, default, meaning, and the file that reads "
      "it.");
  m.def("build_info", [] {
    py::dict info;
    info["compiler"] = __VERSION__;
    info["cxx_standard"] = static_cast<long>(__cplusplus);
    return info;
  });
  m.def(
      "_dtype_name", [](int dtype) { return std::string(collectives::name(static_cast<collectives::DType>(dtype))); },
      "The name of an element type of the core.");
  m.def(
      "_dtype_of",
      [](py::handle array) { return collectives::dtype_of(reinterpret_cast<PyArrayObject*>(array.ptr())); },
      "The number of the element type of a NumPy array, -1 when it has none here.");
}
