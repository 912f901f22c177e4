#include "bindings/devices/device.h"

#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <vector>

#include "bindings/calls/options.h"
#include "bindings/calls/unlocked.h"
#include "core/error.h"
#include "device/collective.h"
#include "device/library.h"
#include "device/pinned.h"
#include "device/replicas.h"

namespace collectives {
namespace {

namespace py = pybind11;

void* pointer(std::uintptr_t number) { return reinterpret_cast<void*>(number); }

void* pointer(py::handle number) {
  void* const result = PyLong_AsVoidPtr(number.ptr());
  if (result == nullptr && PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  return result;
}

DeviceStream stream_of(std::uintptr_t stream, int device) { return {device, pointer(stream)}; }

py::dict status() {
  const DeviceStatus* found = nullptr;
  {
    const Unlocked unlocked;  // the first call starts the driver, which takes long
    found = &device_status();
  }
  py::dict result;
  result["available"] = found->available;
  result["reason"] = found->reason;
  result["library"] = found->library;
  result["devices"] = found->devices;
  result["driver"] = found->driver;
  result["runtime"] = found->runtime;
  return result;
}

int device_of(std::uintptr_t address) {
  int device = -1;
  check_device(device_api().pointer_device(pointer(address), &device), "asking whose memory an array is");
  return device;
}

bool is_capturing(std::uintptr_t stream, int device) {
  const DeviceStream asked = stream_of(stream, device);
  CurrentDevice current;
  return capturing(current, std::span(&asked, 1));
}

// Parsed from tuples (op, dtype, elements, sources, destinations, owners of the destinations).
struct Tensors {
  std::vector<std::vector<void*>> pointers;  // of each tensor: sources, destinations
  std::vector<std::vector<int>> owners;
  std::vector<DeviceTensor> list;
};

Tensors read_tensors(const py::list& given) {
  Tensors tensors;
  const std::size_t count = given.size();
  tensors.pointers.resize(2 * count);
  tensors.owners.resize(count);
  tensors.list.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto fields = py::reinterpret_borrow<py::tuple>(given[i]);
    DeviceTensor& tensor = tensors.list[i];
    tensor.arrays.op = parse_op(fields[0].cast<std::string>());
    tensor.arrays.dtype = parse_dtype(fields[1].cast<std::string>());
    tensor.arrays.count = fields[2].cast<std::int64_t>();
    for (const py::handle source : fields[3]) {
      tensors.pointers[2 * i].push_back(pointer(source));
    }
    for (const py::handle destination : fields[4]) {
      tensors.pointers[2 * i + 1].push_back(pointer(destination));
    }
    for (const py::handle owner : fields[5]) {
      tensors.owners[i].push_back(owner.cast<int>());
    }
    if (tensors.owners[i].size() != tensors.pointers[2 * i + 1].size()) {
      throw ArgumentError("each destination needs an owner");
    }
    tensor.arrays.sources = {tensors.pointers[2 * i].data(), tensors.pointers[2 * i].size()};
    tensor.arrays.destinations = tensors.pointers[2 * i + 1];
    tensor.owners = tensors.owners[i];
  }
  return tensors;
}

void reduce_replicas_on_devices(const std::string& combination, int packs, const std::string& algorithm,
                                const py::list& given, const std::vector<int>& devices,
                                const std::vector<std::uintptr_t>& streams) {
  const Tensors tensors = read_tensors(given);
  const Combination order = parse_combination(combination);
  if (devices.size() != streams.size()) {
    throw ArgumentError("each device needs a stream");
  }
  if (packs < 1) {
    throw ArgumentError("packs is " + std::to_string(packs) + "; at least 1 is accepted");
  }
  std::vector<DeviceStream> replicas;
  for (std::size_t r = 0; r < devices.size(); ++r) {
    replicas.push_back(stream_of(streams[r], devices[r]));
  }
  for (const std::vector<int>& owners : tensors.owners) {
    for (const int owner : owners) {
      if (owner < 0 || static_cast<std::size_t>(owner) >= replicas.size()) {
        throw ArgumentError("owner " + std::to_string(owner) + " is no replica");
      }
    }
  }
  const Unlocked unlocked;
  reduce_device_replicas(order, packs, algorithm, tensors.list, replicas);
}

std::vector<Span> read_spans(py::handle given) {
  std::vector<Span> spans;
  for (const py::handle entry : given) {
    const auto pair = py::reinterpret_borrow<py::tuple>(entry);
    spans.push_back({static_cast<std::byte*>(pointer(py::handle(pair[0]))), pair[1].cast<std::int64_t>()});
  }
  return spans;
}

void collective(const std::string& name, const py::list& given, const std::vector<std::int64_t>& counts,
                const std::string& dtype, std::int64_t count, py::handle record, std::int64_t chunk_bytes) {
  const CallOptions options = options_of(record);
  Call call;
  call.collective = parse_collective(name);
  call.dtype = parse_dtype(dtype);
  read_options(options, &call);
  const auto algorithm = py::handle(options.algorithm).cast<std::string>();
  Problem problem = call.problem();
  problem.count = count;
  problem.counts = counts;
  std::vector<DeviceRank> ranks;
  for (const py::handle entry : given) {
    const auto fields = py::reinterpret_borrow<py::tuple>(entry);
    ranks.push_back({{fields[0].cast<int>(), pointer(py::handle(fields[1]))},
                     read_spans(py::handle(fields[2])),
                     read_spans(py::handle(fields[3]))});
  }
  const std::size_t n = ranks.size();
  const bool square = problem.collective == Collective::kAllToAll;
  if (is_vector(problem.collective) && counts.size() != (square ? n * n : n)) {
    throw ArgumentError(std::to_string(counts.size()) + " lengths of parts for " + std::to_string(n) + " ranks");
  }
  if (chunk_bytes < static_cast<std::int64_t>(64 * n)) {
    throw ArgumentError("chunk_bytes is " + std::to_string(chunk_bytes) + "; at least 64 for each rank are needed");
  }
  const Unlocked unlocked;
  run_device_collective(problem, algorithm, ranks, {}, chunk_bytes);
}

void bind_pinned(py::module_& m) {
  using Number = std::uintptr_t;
  using Buffer = std::unique_ptr<PinnedBuffer, UnlockedDelete<PinnedBuffer>>;
  using Event = std::unique_ptr<DeviceEvent, UnlockedDelete<DeviceEvent>>;
  py::class_<PinnedBuffer, Buffer>(
      m, "_PinnedBuffer", py::buffer_protocol(),
      "Pinned memory of the host, as bytes by the buffer protocol. It is used again for another "
      "buffer when this one is gone and all copies from and to it are done.")
      .def(py::init([](std::int64_t nbytes) {
             const Unlocked unlocked;
             return Buffer(new PinnedBuffer(nbytes));
           }),
           py::arg("nbytes"))
      .def_buffer([](const PinnedBuffer& buffer) {
        return py::buffer_info(reinterpret_cast<unsigned char*>(buffer.data()),
                               static_cast<py::ssize_t>(buffer.bytes()));
      })
      .def(
          "copy_in",
          [](PinnedBuffer& self, std::int64_t offset, Number source, std::int64_t nbytes, Number stream, int device) {
            const Unlocked unlocked;
            self.copy_in(offset, pointer(source), nbytes, stream_of(stream, device));
          },
          "Puts a copy from device memory into a stream; wait() says when it is done.", py::arg("offset"),
          py::arg("source"), py::arg("nbytes"), py::arg("stream"), py::arg("device"))
      .def(
          "copy_out",
          [](PinnedBuffer& self, std::int64_t offset, Number destination, std::int64_t nbytes, Number stream,
             int device) {
            const Unlocked unlocked;
            self.copy_out(offset, pointer(destination), nbytes, stream_of(stream, device));
          },
          "Puts a copy to device memory into a stream. The buffer may be dropped before the copy is done.",
          py::arg("offset"), py::arg("destination"), py::arg("nbytes"), py::arg("stream"), py::arg("device"))
      .def(
          "wait",
          [](const PinnedBuffer& self, double timeout) {
            const Unlocked unlocked;
            self.wait(timeout);
          },
          "Waits until all copies are done; DeadlineError after `timeout` seconds, never where that is negative.",
          py::arg("timeout"));
  py::class_<DeviceEvent, Event>(m, "_DeviceEvent", "The end of all work that a stream holds when this is made.")
      .def(py::init([](Number stream, int device) {
             const Unlocked unlocked;
             auto event = std::make_unique<DeviceEvent>(device);
             event->record(stream_of(stream, device));
             return Event(event.release());
           }),
           py::arg("stream"), py::arg("device"))
      .def("done", &DeviceEvent::done, "Whether that work is done.")
      .def(
          "wait",
          [](const DeviceEvent& self, double timeout) {
            const Unlocked unlocked;
            self.wait(timeout);
          },
          "Waits for it; DeadlineError after `timeout` seconds, never where that is negative.", py::arg("timeout"))
      .def(
          "stream_wait",
          [](const DeviceEvent& self, Number stream, int device) {
            const Unlocked unlocked;
            self.stream_wait(stream_of(stream, device));
          },
          "Lets work that is put into a stream from now on wait for it.", py::arg("stream"), py::arg("device"));
}

}  // namespace

void bind_device(py::module_& m) {
  m.def("_device_status", status,
        "Whether devices can be used: available, reason (why not, and what to do), library (the file), devices (their "
        "names), driver and runtime (versions, 13000 for 13.0; 0 where unknown).");
  m.def("_device_of", device_of, "The device whose memory an address is; -1: memory of the host.", py::arg("pointer"));
  m.def("_device_capturing", is_capturing, "Whether a CUDA graph is recorded in a stream.", py::arg("stream"),
        py::arg("device"));
  m.def(
      "_device_copy",
      [](std::uintptr_t destination, std::uintptr_t source, std::int64_t nbytes, std::uintptr_t stream, int device) {
        const Unlocked unlocked;
        device_copy(pointer(destination), pointer(source), nbytes, stream_of(stream, device));
      },
      "Puts a copy between memories of devices into a stream of `device`.", py::arg("destination"), py::arg("source"),
      py::arg("nbytes"), py::arg("stream"), py::arg("device"));
  m.def("_reduce_device_replicas", reduce_replicas_on_devices,
        "Reduces tensors of (op, dtype, elements, sources, destinations, owners): a source for each replica, and the "
        "replica that owns each destination. `algorithm` is run where the devices of the replicas differ.",
        py::arg("combination"), py::arg("packs"), py::arg("algorithm"), py::arg("tensors"), py::arg("devices"),
        py::arg("streams"));
  m.def("_device_collective", collective,
        "Runs a collective whose ranks are (device, stream, inputs, outputs), with (address, bytes) for each array.",
        py::arg("collective"), py::arg("ranks"), py::arg("counts"), py::arg("dtype"), py::arg("count"),
        py::arg("options"), py::arg("chunk_bytes") = kDeviceChunkBytes);
  m.def(
      "_device_drop_caches",
      [] {
        const Unlocked unlocked;
        drop_device_caches();
      },
      "Releases memory, streams and events that are kept for later calls; waits for the devices.");
  bind_pinned(m);
}

}  // namespace collectives
