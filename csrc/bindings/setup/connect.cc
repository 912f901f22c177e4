// Makes communicators from the descriptors (sockets, shared memory, eventfds) that the Python control plane hands over.

#include <fcntl.h>
#include <pybind11/stl.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <system_error>
#include <tuple>

#include "bindings/calls/communicator.h"
#include "core/error.h"
#include "engine/failure/stacks.h"
#include "memory/domain.h"
#include "memory/host_memory.h"
#include "transports/transport.h"

namespace collectives {
namespace {

namespace py = pybind11;

// For Limits::read_bytes; measured (docs/lab/copies.md).
constexpr std::int64_t kReadBytes = 256 << 10;

// Sizes of the bounce buffers of `size` ranks. The defaults were measured (docs/lab/pipelines.md); tests make them
// tiny.
Limits limits_from(int size, const py::dict& options) {
  Limits limits = Limits::of(size);
  limits.read_bytes = kReadBytes;
  const auto number = [&](const char* key, auto& value) {
    if (options.contains(key)) {
      value = options[key].cast<std::remove_reference_t<decltype(value)>>();
    }
  };
  number("slot_bytes", limits.slot_bytes);
  number("slots", limits.slots);
  number("segment_bytes", limits.segment_bytes);
  number("read_bytes", limits.read_bytes);
  return limits;
}

// The layout of each rank's segment. The option arena_bytes: address space for the segments of groups.
SegmentLayout layout_for(int size, const py::dict& options) {
  const Limits limits = limits_from(size, options);
  const auto heap = options["heap_bytes"].cast<std::size_t>();
  const std::size_t arena = options.contains("arena_bytes") ? options["arena_bytes"].cast<std::size_t>()
                                                            : HostMemory::default_arena_bytes(size, limits, heap);
  return SegmentLayout(size, limits, heap, arena);
}

// The memory that ranks of one host share.
const Memory& memory_of_host() { return find_memory(find_transport(Reach::kHost).memory); }

CommunicatorOptions communicator_options(int rank, std::vector<int> host, const Transport& within,
                                         const py::dict& options) {
  CommunicatorOptions result;
  result.topology.rank = rank;
  result.topology.size = static_cast<int>(host.size());
  result.topology.host = std::move(host);
  result.timeout_s = options["timeout"].cast<double>();
  result.warn_s = options["warn"].cast<double>();
  result.compare_shapes = options["compare_shapes"].cast<bool>();
  result.within = &within;
  // The last two as in Override.
  using Given = std::tuple<std::string, std::int64_t, std::int64_t, std::string, int, bool>;
  for (const auto& [collective, low, high, algorithm, ranks, of_profile] :
       options["overrides"].cast<std::vector<Given>>()) {
    result.overrides.push_back({find_algorithm(parse_collective(collective), algorithm), low, high, ranks, of_profile});
    if (result.overrides.back().algorithm == nullptr) {
      throw ArgumentError(collective + " has no algorithm '" + algorithm + "'");
    }
  }
  result.profile = options["profile"].cast<std::string>();
  for (const auto& [name, value] : options["costs"].cast<std::map<std::string, std::int64_t>>()) {
    result.measured.set(name, value);
  }
  return result;
}

// The number of cores that this process may use.
int cores() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  return sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
}

int create_segment(int size, const py::dict& options) {
  return memory_of_host().create(layout_for(size, options).total);
}

// Maps the segment of a peer. Checks first that it is large enough and sealed against shrinking, since access beyond
// its end would kill this process (SIGBUS).
Mapping map_segment(const Memory& memory, int descriptor, int rank, std::size_t bytes) {
  struct stat status{};
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (fstat(descriptor, &status) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
      static_cast<std::size_t>(status.st_size) != bytes) {
    throw CollectivesError(ErrorKind::kMismatch,
                           "the memory segment of rank " + std::to_string(rank) + " has " +
                               std::to_string(status.st_size) + " bytes instead of " + std::to_string(bytes) +
                               ", or is not sealed; set COLLECTIVES_SYMMETRIC_HEAP to the same value on all ranks",
                           {-1, rank, "", -1, "", -1});
  }
  return memory.map(descriptor, bytes);
}

int duplicate(int descriptor) {
  const int copy = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) {
    throw std::system_error(errno, std::generic_category(), "dup");
  }
  return copy;
}

// The segments and doorbells of the ranks of one host. Shared by the communicators that use them.
struct Segments {
  std::vector<Mapping> mappings;
  std::vector<int> doorbells;
  explicit Segments(int size) : mappings(size), doorbells(size, -1) {}
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;
  ~Segments() {
    for (const int doorbell : doorbells) {
      if (doorbell >= 0) {
        close(doorbell);
      }
    }
  }
  std::vector<std::byte*> bases() const {
    std::vector<std::byte*> result;
    for (const Mapping& mapping : mappings) {
      result.push_back(mapping.data());
    }
    return result;
  }
};

// Makes the communicator of one rank of this process. segments: nullptr where it shares no memory. segment: the
// descriptor of its own segment, or -1.
py::object make_rank(int rank, std::vector<Peer> peers, int doorbell, const SegmentLayout& layout, const Memory& memory,
                     const std::shared_ptr<Segments>& segments, int segment, CommunicatorOptions settings,
                     const py::dict& options) {
  std::shared_ptr<HostMemory> shared;
  if (segments != nullptr) {
    shared = std::make_shared<HostMemory>(rank, limits_from(settings.topology.size, options), layout, memory,
                                          segments->bases(), segments->doorbells, segments, segment);
  }
  auto engine = std::make_shared<Engine>(rank, std::move(peers), doorbell, settings.topology.ranks_per_core, shared);
  return make_handle(std::make_unique<Communicator>(engine, shared != nullptr ? shared->world_domain() : nullptr,
                                                    std::move(settings)));
}

// A process of the job: its ranks, host name and pid; the segment and the doorbell of each of its ranks; for each rank
// of this process the control connection to that process and its pidfd; where it shows its Python stack
// (engine/failure/stacks.h). Lists are empty where a process has none.
using Process = std::tuple<std::vector<int>, std::string, int, std::vector<int>, std::vector<int>, std::vector<int>,
                           std::vector<int>, StackPlace>;

// Maps the segments of all ranks of this host. May throw, so it takes ownership of no descriptor yet.
std::shared_ptr<Segments> map_segments(const SegmentLayout& layout, const Memory& memory, int size,
                                       const std::vector<int>& ranks, const std::vector<int>& own_segments,
                                       const std::vector<int>& own_doorbells, const std::vector<Process>& processes) {
  auto segments = std::make_shared<Segments>(size);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    segments->mappings.at(ranks[i]) = memory.map(own_segments.at(i), layout.total);
    if (memory_is_counted()) {
      memory.reserve(segments->mappings[ranks[i]].data(), layout.heap);
    }
    if (ranks.size() > 1) {
      segments->doorbells.at(ranks[i]) = duplicate(own_doorbells.at(i));  // for the other replicas
    }
  }
  for (const auto& [members, name, pid, memories, doorbells, controls, pids, stack] : processes) {
    for (std::size_t i = 0; i < memories.size(); ++i) {
      segments->mappings.at(members.at(i)) = map_segment(memory, memories[i], members[i], layout.total);
    }
  }
  return segments;
}

// The peers of `rank`, which is number `replica` among the ranks of this process.
std::vector<Peer> peers_of(std::size_t replica, int rank, int size, const std::vector<Process>& processes,
                           const Transport& transport, const std::vector<int>& sockets) {
  std::vector<Peer> peers(size);
  for (const auto& [members, name, pid, memories, doorbells, controls, pids, stack] : processes) {
    for (const int r : members) {
      if (r == rank) {
        continue;
      }
      Peer& peer = peers.at(r);
      peer.rank = r;
      peer.process = members.size() > 1 ? members[0] : -1;
      peer.host = name;
      peer.pid = pid;
      peer.stack_place = stack;
      if (r == members[0]) {
        peer.control_fd = controls.empty() ? -1 : controls.at(replica);
        peer.pid_fd = pids.empty() ? -1 : pids.at(replica);
      }
      if (sockets.at(r) >= 0) {
        peer.link = transport.connect(sockets[r], r);
      }
    }
  }
  return peers;
}

// Topology::ranks_per_core, machine and cores, and Network::bytes_per_ms, latency_ns and burst_bytes.
using Surroundings = std::tuple<int, std::vector<int>, std::vector<int>, std::int64_t, std::int64_t, std::int64_t>;

// Makes a communicator for each rank of process `own`. segments, doorbells: of its ranks; sockets: for each of its
// ranks the connection to each other rank, -1 where there is none. transport: what the caller asked for; ranks that
// share no memory use it if it is for such ranks. Takes ownership of all descriptors, unless it throws.
py::list connect(int own, const std::vector<int>& host, const Surroundings& surroundings,
                 const std::vector<int>& segments, const std::vector<int>& doorbells,
                 const std::vector<Process>& processes, const std::vector<std::vector<int>>& sockets,
                 const std::string& transport, const py::dict& options) {
  const int size = static_cast<int>(host.size());
  const SegmentLayout layout = layout_for(size, options);
  const Memory& memory = memory_of_host();
  const std::vector<int>& ranks = std::get<0>(processes.at(own));
  std::shared_ptr<Segments> shared;
  if (std::count(host.begin(), host.end(), host.at(ranks.at(0))) > 1) {
    shared = map_segments(layout, memory, size, ranks, segments, doorbells, processes);
    for (const auto& [members, name, pid, memories, bells, controls, pids, stack] : processes) {
      std::for_each(memories.begin(), memories.end(), close);
      for (std::size_t i = 0; i < bells.size(); ++i) {
        shared->doorbells.at(members[i]) = bells[i];
      }
    }
  }
  if (shared == nullptr) {
    for (const int segment : segments) {
      if (segment >= 0) {
        close(segment);
      }
    }
  }
  py::list result;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    CommunicatorOptions settings = communicator_options(ranks[i], host, find_transport(Reach::kHost), options);
    settings.between = &find_transport(Reach::kNetwork, transport);
    std::tie(settings.topology.ranks_per_core, settings.topology.machine, settings.topology.cores,
             settings.network.bytes_per_ms, settings.network.latency_ns, settings.network.burst_bytes) = surroundings;
    settings.threads = ranks.size() > 1;
    result.append(make_rank(ranks[i], peers_of(i, ranks[i], size, processes, *settings.between, sockets.at(i)),
                            doorbells.at(i), layout, memory, shared, segments.at(i), std::move(settings), options));
  }
  return result;
}

// Makes communicators for `size` threads of this process.
py::list local_group(int size, const py::dict& options) {
  const SegmentLayout layout = layout_for(size, options);
  const Transport& within = find_transport(Reach::kProcess);
  const Memory& memory = find_memory(within.memory);
  auto group = std::make_shared<Segments>(size);
  for (int r = 0; r < size; ++r) {
    group->mappings[r] = memory.map(memory.create(layout.total), layout.total);
    const int doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (doorbell < 0) {
      throw std::system_error(errno, std::generic_category(), "eventfd");
    }
    group->doorbells[r] = doorbell;
  }
  py::list result;
  for (int r = 0; r < size; ++r) {
    CommunicatorOptions settings = communicator_options(r, std::vector<int>(size, 0), within, options);
    settings.topology.ranks_per_core = (size + cores() - 1) / cores();
    settings.threads = true;
    result.append(make_rank(r, std::vector<Peer>(size), duplicate(group->doorbells[r]), layout, memory, group, -1,
                            std::move(settings), options));
  }
  return result;
}

}  // namespace

void bind_connect(py::module_& m) {
  m.def("create_segment", &create_segment, "The descriptor of a memory segment for one rank of a group of `size`.");
  m.def("segment_bytes", [](int size, const py::dict& options) { return layout_for(size, options).total; });
  m.def("connect", &connect,
        "A communicator for each rank of this process, over connected descriptors, all of which it takes over.");
  m.def("local_group", &local_group, "Communicators for `size` threads of this process.");
  m.def("transports", [] {
    py::dict result;
    for (const Transport& transport : transports()) {
      py::dict about;
      about["description"] = std::string(transport.description);
      about["reach"] = std::string(name(transport.reach));
      about["latency_us"] = transport.cost.latency_us;
      about["bytes_per_us"] = transport.cost.bytes_per_us;
      result[py::str(transport.name.data(), transport.name.size())] = about;
    }
    return result;
  });
}

}  // namespace collectives
