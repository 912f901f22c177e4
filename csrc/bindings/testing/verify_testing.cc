#include "bindings/testing/verify_testing.h"

#include <pybind11/stl.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "bindings/calls/unlocked.h"
#include "core/error.h"
#include "schedule/algorithm.h"
#include "verify/mutation.h"
#include "verify/verifier.h"

namespace py = pybind11;

namespace collectives {
namespace {

// A problem with its placement and limits, from the arguments of the tests. In vector collectives `count` is the length
// of each part, unless `lengths` gives them all (Problem::counts).
struct Case {
  std::string algorithm;
  Problem problem;
  Topology topology;
  Limits limits;

  Schedule build(int rank) const {
    Topology of_rank = topology;
    of_rank.rank = rank;
    const Problem known = problem.as_known_to(rank, topology.size);
    const bool enough = find_algorithm(problem.collective, algorithm)->unsupported(known, of_rank).empty();
    return build_schedule(algorithm, enough ? known : problem, of_rank, limits);
  }
  std::vector<Schedule> build_all() const {
    std::vector<Schedule> schedules;
    for (int r = 0; r < topology.size; ++r) {
      schedules.push_back(build(r));
    }
    return schedules;
  }
};

const Algorithm& algorithm_of(const std::string& collective, const std::string& name) {
  const Algorithm* found = find_algorithm(parse_collective(collective), name);
  if (found == nullptr) {
    throw ArgumentError(collective + " has no algorithm '" + name + "'");
  }
  return *found;
}

Case make_case(const std::string& collective, const std::string& algorithm, int size, int root, std::int64_t count,
               const std::string& dtype, const std::string& memory, const std::vector<int>& hosts,
               const std::vector<std::int64_t>& lengths, int slots, std::int64_t slot_bytes, std::int64_t segment_bytes,
               std::int64_t inline_bytes, std::int64_t read_bytes, bool swap_buffers) {
  Case c;
  c.algorithm = algorithm_of(collective, algorithm).name;
  c.problem.collective = parse_collective(collective);
  c.problem.dtype = parse_dtype(dtype);
  c.problem.memory = parse_memory(memory);
  c.problem.count = count;
  c.problem.root = root;
  c.topology = one_host(0, size);
  if (!hosts.empty()) {
    if (hosts.size() != static_cast<std::size_t>(size)) {
      throw ArgumentError("hosts must name one host for each rank");
    }
    c.topology.host = hosts;
  }
  if (size < 1 || root < 0 || root >= size || slots < 1) {
    throw ArgumentError("size, root or slots out of range");
  }
  if (is_vector(c.problem.collective)) {
    const auto parts = static_cast<std::size_t>(c.problem.collective == Collective::kAllToAll ? size * size : size);
    c.problem.counts = lengths.empty() ? std::vector<std::int64_t>(parts, count) : lengths;
    if (c.problem.counts.size() != parts) {
      throw ArgumentError("lengths must name one length for each part");
    }
    c.problem.count = std::accumulate(c.problem.counts.begin(), c.problem.counts.end(), std::int64_t{0});
  }
  c.limits.slots = slots;
  c.limits.slot_bytes = slot_bytes;
  c.limits.segment_bytes = segment_bytes;
  c.limits.inline_bytes = inline_bytes;
  c.limits.read_bytes = read_bytes;
  c.limits.swap_buffers = swap_buffers;
  return c;
}

py::list algorithms_of(const std::string& collective) {
  py::list result;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective == parse_collective(collective)) {
      py::dict entry;
      entry["name"] = algorithm.name;
      entry["description"] = algorithm.description;
      entry["source"] = algorithm.source;
      entry["determinism"] = algorithm.determinism == Determinism::kCanonical ? "canonical" : "fixed";
      result.append(entry);
    }
  }
  return result;
}

py::dict run_verify(const Case& c, bool in_place, int repeats, int mutate_rank, int mutation) {
  std::string mutation_text;
  Verdict verdict;
  {
    const Unlocked unlocked;
    std::vector<Schedule> schedules = c.build_all();
    if (mutate_rank >= 0 && mutation >= 0) {
      Schedule& damaged = schedules.at(static_cast<std::size_t>(mutate_rank));
      const Mutation chosen = mutations(damaged).at(static_cast<std::size_t>(mutation));
      mutation_text = chosen.text;
      damaged = apply(damaged, chosen);
    }
    verdict = verify(schedules, c.problem, c.topology, {repeats, in_place, c.limits});
  }
  py::dict result;
  result["ok"] = verdict.ok;
  result["problem"] = verdict.problem;
  result["mutation"] = mutation_text;
  result["link_bytes"] = verdict.link_bytes;
  result["steps"] = verdict.steps;
  result["sends"] = verdict.sends;
  result["receives"] = verdict.receives;
  result["reductions"] = verdict.reductions;
  result["hops"] = verdict.hops;
  result["canonical"] = verdict.canonical;
  return result;
}

// The mutants that the verifier accepts both in place and out of place, and the number of all mutants. One that it
// rejects in either way is no survivor: a schedule has the same steps for both, and some are needed for one only.
py::tuple survivors(const Case& c, int repeats) {
  std::vector<std::string> passed;
  std::int64_t total = 0;
  {
    const Unlocked unlocked;
    std::vector<Schedule> schedules = c.build_all();
    for (std::size_t r = 0; r < schedules.size(); ++r) {
      const Schedule intact = schedules[r];
      for (const Mutation& mutation : mutations(intact)) {
        ++total;
        schedules[r] = apply(intact, mutation);
        const bool in_place = c.problem.collective != Collective::kAllToAll;
        const bool rejected = (in_place && !verify(schedules, c.problem, c.topology, {repeats, true, c.limits}).ok) ||
                              !verify(schedules, c.problem, c.topology, {repeats, false, c.limits}).ok;
        if (!rejected) {
          passed.push_back("rank " + std::to_string(r) + " " + mutation.text);
        }
      }
      schedules[r] = intact;
    }
  }
  return py::make_tuple(passed, total);
}

}  // namespace

void bind_verify_testing(py::module_& m) {
  // The arguments that make a Case, with the defaults of Limits.
  const Limits limits;
  const auto bind = [&m, &limits](const char* name, auto function, auto... more) {
    m.def(name, function, py::arg("collective"), py::arg("algorithm"), py::arg("size"), py::arg("root") = 0,
          py::arg("count") = 1, py::arg("dtype") = "float32", py::arg("memory") = "private",
          py::arg("hosts") = std::vector<int>(), py::arg("lengths") = std::vector<std::int64_t>(),
          py::arg("slots") = limits.slots, py::arg("slot_bytes") = limits.slot_bytes,
          py::arg("segment_bytes") = limits.segment_bytes, py::arg("inline_bytes") = limits.inline_bytes,
          py::arg("read_bytes") = limits.read_bytes, py::arg("swap_buffers") = limits.swap_buffers, more...);
  };
  using Text = const std::string&;
  using Hosts = const std::vector<int>&;
  using Lengths = const std::vector<std::int64_t>&;
  using I = std::int64_t;
  m.def("_algorithms", &algorithms_of, py::arg("collective"));
  bind("_unsupported", [](Text collective, Text algorithm, int size, int root, I count, Text dtype, Text memory,
                          Hosts hosts, Lengths lengths, int slots, I slot, I segment, I inlined, I read, bool swap) {
    const Case c = make_case(collective, algorithm, size, root, count, dtype, memory, hosts, lengths, slots, slot,
                             segment, inlined, read, swap);
    return std::string(algorithm_of(collective, algorithm).unsupported(c.problem, c.topology));
  });
  bind(
      "_schedule_text",
      [](Text collective, Text algorithm, int size, int root, I count, Text dtype, Text memory, Hosts hosts,
         Lengths lengths, int slots, I slot, I segment, I inlined, I read, bool swap, int rank) {
        const Case c = make_case(collective, algorithm, size, root, count, dtype, memory, hosts, lengths, slots, slot,
                                 segment, inlined, read, swap);
        return to_text(c.build(rank));
      },
      py::arg("rank") = 0);
  bind(
      "_mutations",
      [](Text collective, Text algorithm, int size, int root, I count, Text dtype, Text memory, Hosts hosts,
         Lengths lengths, int slots, I slot, I segment, I inlined, I read, bool swap, int rank) {
        const Case c = make_case(collective, algorithm, size, root, count, dtype, memory, hosts, lengths, slots, slot,
                                 segment, inlined, read, swap);
        std::vector<std::string> texts;
        for (const Mutation& mutation : mutations(c.build(rank))) {
          texts.push_back(mutation.text);
        }
        return texts;
      },
      py::arg("rank") = 0);
  bind(
      "_verify",
      [](Text collective, Text algorithm, int size, int root, I count, Text dtype, Text memory, Hosts hosts,
         Lengths lengths, int slots, I slot, I segment, I inlined, I read, bool swap, bool in_place, int repeats,
         int mutate_rank, int mutation) {
        return run_verify(make_case(collective, algorithm, size, root, count, dtype, memory, hosts, lengths, slots,
                                    slot, segment, inlined, read, swap),
                          in_place, repeats, mutate_rank, mutation);
      },
      py::arg("in_place") = false, py::arg("repeats") = 2, py::arg("mutate_rank") = -1, py::arg("mutation") = -1);
  bind(
      "_survivors",
      [](Text collective, Text algorithm, int size, int root, I count, Text dtype, Text memory, Hosts hosts,
         Lengths lengths, int slots, I slot, I segment, I inlined, I read, bool swap, int repeats) {
        return survivors(make_case(collective, algorithm, size, root, count, dtype, memory, hosts, lengths, slots, slot,
                                   segment, inlined, read, swap),
                         repeats);
      },
      py::arg("repeats") = 3);
}

}  // namespace collectives
