// Making communicators from descriptors that the control plane has connected.

#include <fcntl.h>
#include <pybind11/stl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "bindings/communicator.h"
#include "core/domain.h"
#include "core/error.h"
#include "core/transport.h"
#include "runtime/host_memory.h"

namespace collectives {
namespace {

namespace py = pybind11;

// Box sizes. The defaults were measured (docs/performance.md); tests make them tiny.
Limits limits_from(const py::dict& options) {
  Limits limits;
  const auto number = [&](const char* key, auto& value) {
    if (options.contains(key)) {
      value = options[key].cast<std::remove_reference_t<decltype(value)>>();
    }
  };
  number("slot_bytes", limits.slot_bytes);
  number("slots", limits.slots);
  number("segment_bytes", limits.segment_bytes);
  return limits;
}

// arena_bytes: address space for the segments of groups.
SegmentLayout layout_for(int size, const py::dict& options) {
  const Limits limits = limits_from(options);
  const auto heap = options["heap_bytes"].cast<std::size_t>();
  const std::size_t arena = options.contains("arena_bytes") ? options["arena_bytes"].cast<std::size_t>()
                                                            : HostMemory::default_arena_bytes(size, limits, heap);
  return SegmentLayout(size, limits, heap, arena);
}

CommunicatorOptions communicator_options(int rank, std::vector<int> host, const py::dict& options) {
  CommunicatorOptions result;
  result.topology.rank = rank;
  result.topology.size = static_cast<int>(host.size());
  result.topology.host = std::move(host);
  result.timeout_s = options["timeout"].cast<double>();
  result.warn_s = options["warn"].cast<double>();
  return result;
}

int create_segment(int size, const py::dict& options) {
  return find_memory("memfd").create(layout_for(size, options).total);
}

// A segment of a peer, once it is known to be as large as it has to be and sealed against shrinking: else touching it
// could end this process.
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

// The segments and the doorbells of the ranks of one host, alive as long as any communicator that uses them.
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

// peers: (rank, host name, pid, memory, doorbell, control, pid descriptor, tcp), descriptors -1 where there is none.
// All descriptors are taken over, unless it throws.
py::object connect(int rank, const std::vector<int>& host, int segment, int doorbell, const py::list& peers,
                   const py::dict& options) {
  const int size = static_cast<int>(host.size());
  const SegmentLayout layout = layout_for(size, options);
  const Memory& memory = find_memory("memfd");
  auto segments = std::make_shared<Segments>(size);
  std::vector<Peer> connected(size);
  int local_size = 1;
  for (const py::handle item : peers) {
    const auto entry = item.cast<py::tuple>();
    const int r = entry[0].cast<int>();
    if (const int descriptor = entry[3].cast<int>(); descriptor >= 0) {
      segments->mappings.at(r) = map_segment(memory, descriptor, r, layout.total);
      ++local_size;
    }
  }
  if (local_size > 1) {
    segments->mappings.at(rank) = memory.map(segment, layout.total);
  }
  for (const py::handle item : peers) {
    const auto entry = item.cast<py::tuple>();
    const int r = entry[0].cast<int>();
    Peer& peer = connected.at(r);
    peer.rank = r;
    peer.host = entry[1].cast<std::string>();
    peer.pid = entry[2].cast<int>();
    peer.control_fd = entry[5].cast<int>();
    peer.pid_fd = entry[6].cast<int>();
    if (const int descriptor = entry[3].cast<int>(); descriptor >= 0) {
      close(descriptor);
      segments->doorbells[r] = entry[4].cast<int>();
    }
    if (const int descriptor = entry[7].cast<int>(); descriptor >= 0) {
      peer.link = find_transport("tcp").over_socket(descriptor, r);
    }
  }
  std::shared_ptr<HostMemory> shared;
  if (local_size > 1) {
    shared = std::make_shared<HostMemory>(rank, limits_from(options), layout, memory, segments->bases(),
                                          segments->doorbells, segments);
  }
  close(segment);
  auto engine = std::make_shared<Engine>(rank, std::move(connected), doorbell, local_size, shared);
  return make_handle(std::make_unique<Communicator>(engine, shared != nullptr ? shared->world_domain() : nullptr,
                                                    communicator_options(rank, host, options)));
}

// n communicators for n threads of this process.
py::list local_group(int size, const py::dict& options) {
  const SegmentLayout layout = layout_for(size, options);
  const Memory& memory = find_memory("host");
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
    auto shared =
        std::make_shared<HostMemory>(r, limits_from(options), layout, memory, group->bases(), group->doorbells, group);
    const int doorbell = fcntl(group->doorbells[r], F_DUPFD_CLOEXEC, 0);
    auto engine = std::make_shared<Engine>(r, std::vector<Peer>(size), doorbell, size, shared);
    CommunicatorOptions settings = communicator_options(r, std::vector<int>(size, 0), options);
    settings.mapped_transport = "local";
    result.append(make_handle(std::make_unique<Communicator>(engine, shared->world_domain(), settings)));
  }
  return result;
}

}  // namespace

void bind_connect(py::module_& m) {
  m.def("create_segment", &create_segment, "The descriptor of a memory segment for one rank of a group of `size`.");
  m.def("segment_bytes", [](int size, const py::dict& options) { return layout_for(size, options).total; });
  m.def("connect", &connect, "A communicator over connected descriptors, all of which it takes over.");
  m.def("local_group", &local_group, "Communicators for `size` threads of this process.");
  m.def("transports", [] {
    py::dict result;
    for (const Transport& transport : transports()) {
      result[py::str(transport.name.data(), transport.name.size())] = std::string(transport.description);
    }
    return result;
  });
}

}  // namespace collectives
