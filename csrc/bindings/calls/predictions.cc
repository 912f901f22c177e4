#include "bindings/calls/predictions.h"

#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "bindings/calls/communicator.h"
#include "bindings/calls/unlocked.h"
#include "core/error.h"
#include "predict/selector.h"

namespace py = pybind11;

namespace collectives {
namespace {

// One dict for each algorithm, the fastest first; "us" and the others are None where it cannot be used.
py::dict predictions(const Topology& topology, const CostModel& costs, const Network& network,
                     const std::vector<Override>& overrides, const Problem& problem) {
  const Selector selector(topology, costs, network, overrides);
  const Algorithm* asked_for = selector.overridden(problem, false);
  std::vector<Prediction> found;
  {
    const Unlocked unlocked;
    found = selector.predictions(problem);
  }
  const auto us = [](const Prediction& of, Picoseconds time) -> py::object {
    return of.unsupported.empty() ? py::object(py::float_(static_cast<double>(time) / kMicrosecond)) : py::none();
  };
  py::list candidates;
  for (const Prediction& prediction : found) {
    py::dict entry;
    entry["algorithm"] = std::string(prediction.algorithm->name);
    entry["unsupported"] = std::string(prediction.unsupported);
    entry["us"] = us(prediction, prediction.time);
    entry["wire_us"] = us(prediction, prediction.wire);
    entry["processor_us"] = us(prediction, prediction.processor);
    entry["formula"] = prediction.formula;
    entry["at_least"] = prediction.cut_off;
    candidates.append(entry);
  }
  py::dict result;
  result["simulated"] = selector.simulates();
  result["bytes_per_ms"] = network.bytes_per_ms;
  result["latency_ns"] = network.latency_ns;
  result["candidates"] = candidates;
  result["override"] = asked_for != nullptr ? std::string(asked_for->name) : "";
  return result;
}

void check_root(int root, int size) {
  if (root < 0 || root >= size) {
    throw ArgumentError("root " + std::to_string(root) + " is out of range: the group has ranks 0 to " +
                        std::to_string(size - 1));
  }
}

}  // namespace

void bind_predictions(py::module_& m) {
  m.def(
      "_predictions",
      [](py::handle c, const std::string& collective, std::int64_t bytes, int root) {
        const Communicator& communicator = communicator_of(c);
        const CommunicatorOptions& options = communicator.options();
        check_root(root, options.topology.size);
        return predictions(options.topology, options.costs(), options.network, options.overrides,
                           even_problem(parse_collective(collective), bytes, root, options.topology.size));
      },
      "What is expected of each algorithm for a call of this communicator.");
  m.def(
      "_predictions_for",
      [](const std::string& collective, std::int64_t bytes, int root, const std::vector<int>& hosts,
         const std::vector<int>& machine, const std::vector<int>& cores, std::int64_t bytes_per_ms,
         std::int64_t latency_ns) {
        Topology topology;
        topology.size = static_cast<int>(hosts.size());
        topology.host = hosts;
        topology.machine = machine;
        topology.cores = cores;
        check_root(root, topology.size);
        return predictions(topology, CostModel(), {bytes_per_ms, latency_ns}, {},
                           even_problem(parse_collective(collective), bytes, root, topology.size));
      },
      py::arg("collective"), py::arg("bytes"), py::arg("root") = 0, py::arg("hosts") = std::vector<int>(),
      py::arg("machine") = std::vector<int>(), py::arg("cores") = std::vector<int>(),
      py::arg("bytes_per_ms") = Network().bytes_per_ms, py::arg("latency_ns") = Network().latency_ns,
      "The same for a job that is only described, for tests.");
  m.def("_algorithms_digest", &algorithms_digest);
}

}  // namespace collectives
