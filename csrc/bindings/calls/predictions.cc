#include "bindings/calls/predictions.h"

#include <pybind11/stl.h>

#include <map>
#include <string>
#include <vector>

#include "bindings/calls/communicator.h"
#include "bindings/calls/unlocked.h"
#include "core/error.h"
#include "predict/profile.h"
#include "predict/selector.h"

namespace py = pybind11;

namespace collectives {
namespace {

ProfileCosts profile_costs(const std::map<std::string, std::int64_t>& said) {
  ProfileCosts costs;
  for (const auto& [name, value] : said) {
    costs.set(name, value);
  }
  return costs;
}

// One dict for each algorithm, the fastest first; "us" and the others are None where it cannot be used.
py::dict predictions(const Topology& topology, const CostModel& costs, const Network& network,
                     const std::vector<Override>& overrides, const ProcessorCosts& processor, const Problem& problem) {
  const Selector selector(topology, costs, network, overrides, processor);
  const Override* asked_for = selector.overridden(problem, false);
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
    entry["least_us"] = us(prediction, prediction.least);
    entry["formula"] = prediction.formula;
    entry["at_least"] = prediction.cut_off;
    candidates.append(entry);
  }
  py::dict result;
  result["simulated"] = selector.simulates();
  result["bytes_per_ms"] = network.bytes_per_ms;
  result["latency_ns"] = network.latency_ns;
  result["burst_bytes"] = network.burst_bytes;
  result["candidates"] = candidates;
  result["override"] = asked_for != nullptr ? std::string(asked_for->algorithm->name) : "";
  result["of_profile"] = asked_for != nullptr && asked_for->of_profile;
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
        py::dict found = predictions(options.topology, options.costs(), options.network, options.overrides,
                                     options.measured.processor,
                                     even_problem(parse_collective(collective), bytes, root, options.topology.size));
        found["profile"] = options.profile;
        return found;
      },
      "What is expected of each algorithm for a call of this communicator.");
  m.def(
      "_predictions_for",
      [](const std::string& collective, std::int64_t bytes, int root, const std::vector<int>& hosts,
         const std::vector<int>& machine, const std::vector<int>& cores, std::int64_t bytes_per_ms,
         std::int64_t latency_ns, std::int64_t burst_bytes, const std::map<std::string, std::int64_t>& costs) {
        Topology topology;
        topology.size = static_cast<int>(hosts.size());
        topology.host = hosts;
        topology.machine = machine;
        topology.cores = cores;
        check_root(root, topology.size);
        const ProfileCosts measured = profile_costs(costs);
        CostModel model;
        measured.apply(topology, model);
        return predictions(topology, model, {bytes_per_ms, latency_ns, burst_bytes}, {}, measured.processor,
                           even_problem(parse_collective(collective), bytes, root, topology.size));
      },
      py::arg("collective"), py::arg("bytes"), py::arg("root") = 0, py::arg("hosts") = std::vector<int>(),
      py::arg("machine") = std::vector<int>(), py::arg("cores") = std::vector<int>(),
      py::arg("bytes_per_ms") = Network().bytes_per_ms, py::arg("latency_ns") = Network().latency_ns,
      py::arg("burst_bytes") = Network().burst_bytes, py::arg("costs") = std::map<std::string, std::int64_t>(),
      "The same for a job that is only described, for tests.");
  m.def("_algorithms_digest", &algorithms_digest);
  m.def(
      "_profile_costs",
      [] {
        py::dict found;
        for (const CostRow& row : cost_rows()) {
          found[py::str(row.name.data(), row.name.size())] = py::make_tuple(row.low, row.high);
        }
        return found;
      },
      "The costs of profiles by name, each with the least and the most that are accepted.");
}

}  // namespace collectives
