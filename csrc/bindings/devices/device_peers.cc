// DevicePeers (device/peers.h) for python/collectives/_devices/peers.py, which exchanges what it returns.

#include "bindings/devices/device_peers.h"

#include <pybind11/stl.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/calls/options.h"
#include "bindings/calls/unlocked.h"
#include "device/library.h"
#include "device/peers.h"

namespace collectives {
namespace {

namespace py = pybind11;

using Memory = std::vector<std::pair<std::uintptr_t, std::int64_t>>;  // pointers and bytes

std::vector<Span> spans_of(const Memory& memory) {
  std::vector<Span> spans;
  spans.reserve(memory.size());
  for (const auto& [pointer, bytes] : memory) {
    spans.push_back({reinterpret_cast<std::byte*>(pointer), bytes});
  }
  return spans;
}

py::bytes to_bytes(const std::vector<std::byte>& made) {
  return {reinterpret_cast<const char*>(made.data()), made.size()};
}

std::span<const std::byte> seen(const py::bytes& bytes) {
  const std::string_view view(bytes);
  return {reinterpret_cast<const std::byte*>(view.data()), view.size()};
}

// Keeps the call between the steps of DevicePeers; one call at a time.
class Peers {
 public:
  Peers(int rank, int size, int device) : peers_(device_api(), rank, size, device) {}

  py::bytes endpoint() const {
    std::vector<std::byte> made;
    {
      const Unlocked unlocked;
      made = peers_.endpoint();
    }
    return to_bytes(made);
  }
  std::string connect(const py::bytes& endpoints) {
    const std::span<const std::byte> all = seen(endpoints);
    const Unlocked unlocked;
    return peers_.connect(all);
  }

  py::bytes header(const std::string& collective, const Memory& inputs, const Memory& outputs,
                   std::vector<std::int64_t> counts, const std::string& dtype,
                   const std::vector<std::vector<std::int64_t>>& shapes, std::int64_t count, py::handle record) {
    const CallOptions options = options_of(record);
    Call asked;
    asked.collective = parse_collective(collective);
    asked.dtype = parse_dtype(dtype);
    read_options(options, &asked);
    call_ = DeviceCall();
    call_.problem = asked.problem();
    call_.problem.count = count;
    call_.problem.counts = std::move(counts);
    call_.factor = asked.factor;
    call_.inputs = spans_of(inputs);
    call_.outputs = spans_of(outputs);
    for (const std::vector<std::int64_t>& shape : shapes) {
      call_.shapes.add(shape);
    }
    stream_ = reinterpret_cast<void*>(py::handle(options.stream).cast<std::uintptr_t>());
    std::vector<std::byte> made;
    {
      const Unlocked unlocked;
      made = peers_.header(call_, stream_);
    }
    return to_bytes(made);
  }
  std::vector<std::int64_t> check(const py::bytes& headers) { return peers_.check(seen(headers)); }
  py::bytes rest() const { return to_bytes(peers_.rest()); }
  void run(const py::bytes& rests) {
    const std::span<const std::byte> all = seen(rests);
    const Unlocked unlocked;
    peers_.run(call_, all, stream_);
  }
  void finish() {
    const Unlocked unlocked;
    peers_.finish(stream_);
  }
  bool wait(double seconds) {
    const Unlocked unlocked;
    return peers_.wait(seconds);
  }
  int device() const { return peers_.device(); }

 private:
  DevicePeers peers_;
  DeviceCall call_;
  void* stream_ = nullptr;
};

}  // namespace

void bind_device_peers(py::module_& m) {
  using Holder = std::unique_ptr<Peers, UnlockedDelete<Peers>>;
  py::class_<Peers, Holder>(m, "_DevicePeers", "This rank among ranks that address each other's device memory.")
      .def(py::init([](int rank, int size, int device) {
             const Unlocked unlocked;
             return Holder(new Peers(rank, size, device));
           }),
           py::arg("rank"), py::arg("size"), py::arg("device"))
      .def_property_readonly("device", &Peers::device)
      .def("endpoint", &Peers::endpoint, "What the others need to address this rank's device. Exchanged once.")
      .def("connect", &Peers::connect, py::arg("endpoints"),
           "Given the endpoints of all ranks: why this rank cannot address the memory of all others; empty if it can.")
      .def("header", &Peers::header,
           "Describes a call of this rank; all ranks exchange their headers. The stream of the options is an address.",
           py::arg("collective"), py::arg("inputs"), py::arg("outputs"), py::arg("counts"), py::arg("dtype"),
           py::arg("shapes"), py::arg("count"), py::arg("options"))
      .def("check", &Peers::check, py::arg("headers"),
           "Compares the headers of all ranks; the length of the rest of each, or nothing where some memory cannot "
           "be exported to other processes.")
      .def("rest", &Peers::rest, "What did not fit into the header.")
      .def("run", &Peers::run, py::arg("rests"), "Puts the share of this rank into its stream.")
      .def("wait", &Peers::wait, py::arg("timeout"),
           "Waits until the shares of all ranks in the last call are done; false after `timeout` seconds.")
      .def("finish", &Peers::finish,
           "Has the stream wait for the shares of the others, all of which must have called run.");
  m.def(
      "_device_endpoint_bytes", [] { return DevicePeers::kEndpointBytes; },
      "The length of what _DevicePeers.endpoint returns.");
}

}  // namespace collectives
