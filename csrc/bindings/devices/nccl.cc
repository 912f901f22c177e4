#include "bindings/devices/nccl.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bindings/calls/communicator.h"
#include "bindings/calls/options.h"
#include "bindings/calls/unlocked.h"
#include "core/error.h"
#include "device/library.h"
#include "nccl/communicator.h"
#include "nccl/errors.h"
#include "nccl/library.h"
#include "nccl/operation.h"

namespace collectives {
namespace {

namespace py = pybind11;

using Paths = std::vector<std::string>;

// A communicator of NCCL, and that of the engine to which it belongs.
struct PyNccl {
  std::shared_ptr<NcclCommunicator> nccl;
  std::weak_ptr<Communicator> host;
  bool alone = false;  // it belongs to none: all its ranks are in this process

  PyNccl() = default;
  PyNccl(const PyNccl&) = delete;
  PyNccl& operator=(const PyNccl&) = delete;
  ~PyNccl() {
    if (nccl != nullptr) {
      const Unlocked unlocked;
      nccl.reset();
    }
  }
};

struct PyNcclWork {
  std::shared_ptr<NcclWork> work;

  PyNcclWork(std::shared_ptr<NcclWork> made) : work(std::move(made)) {}
  PyNcclWork(PyNcclWork&&) = default;
  PyNcclWork(const PyNcclWork&) = delete;
  PyNcclWork& operator=(const PyNcclWork&) = delete;
  ~PyNcclWork() {
    if (work != nullptr) {  // this may delete the communicator, which waits for the device
      const Unlocked unlocked;
      work.reset();
    }
  }

  bool wait(double timeout_s) const {
    constexpr double kSlice = 0.1;
    const auto started = NcclClock::now();
    for (;;) {
      const double left = timeout_s < 0 ? kSlice : std::max(0.0, timeout_s - seconds_since(started));
      bool done = false;
      {
        const Unlocked unlocked;
        done = work->communicator->wait(*work, std::min(left, kSlice));
      }
      if (done || (timeout_s >= 0 && left <= kSlice)) {
        return done;
      }
      if (PyErr_CheckSignals() != 0) {
        throw py::error_already_set();
      }
    }
  }
};

py::dict status(const Paths& paths) {
  const NcclLibrary& library = nccl_library(paths);
  py::dict result;
  result["usable"] = library.usable();
  result["version"] = library.version == 0 ? std::string() : nccl_version_text(library.version);
  result["code"] = library.version;
  result["path"] = library.path;
  result["where"] = library.where;
  result["why"] = library.why;
  return result;
}

py::bytes unique_id(const Paths& paths) {
  const NcclLibrary& library = usable_nccl_library(paths);
  NcclUniqueId id{};
  NcclResult result = kNcclSuccess;
  {
    const Unlocked unlocked;
    result = library.api.get_unique_id(&id);
  }
  if (result != kNcclSuccess) {
    throw nccl_error(library.api, nullptr, result, "making an id for a communicator of NCCL", {});
  }
  return {id.internal, sizeof id.internal};
}

NcclUniqueId id_of(const std::string& bytes) {
  NcclUniqueId id{};
  if (bytes.size() != sizeof id.internal) {
    throw ArgumentError("an id of NCCL has 128 bytes, not " + std::to_string(bytes.size()));
  }
  std::memcpy(id.internal, bytes.data(), bytes.size());
  return id;
}

// Failures are shared with the engine's communicator: it publishes those of NCCL, and its own end NCCL's calls.
NcclGroup group_of(const std::shared_ptr<Communicator>& communicator) {
  const std::weak_ptr<Communicator> weak = communicator;
  NcclGroup group;
  group.failure = [weak]() -> std::unique_ptr<CollectivesError> {
    const auto host = weak.lock();
    return host != nullptr ? host->failure() : nullptr;
  };
  group.fail = [weak](const CollectivesError& error) {
    if (const auto host = weak.lock(); host != nullptr) {
      host->give_up(error.kind(), error.what());
    }
  };
  return group;
}

std::unique_ptr<PyNccl> connect(py::handle communicator, const Paths& paths, const py::bytes& id, int device,
                                double timeout_s) {
  const NcclLibrary& library = usable_nccl_library(paths);
  const std::shared_ptr<Communicator> host = shared_communicator_of(communicator);
  auto made = std::make_unique<PyNccl>();
  made->host = host;
  const NcclUniqueId key = id_of(id);
  const Unlocked unlocked;
  const NcclCommunicator::Member member{host->rank(), device};
  const NcclGroup group = group_of(host);
  try {
    made->nccl = NcclCommunicator::create(library, device_api(), key, host->size(), {&member, 1}, timeout_s,
                                          host->options().warn_s, group)
                     .front();
  } catch (const CollectivesError& error) {
    group.fail(error);  // publishes it: the others wait for this rank
    throw;
  }
  return made;
}

std::vector<std::unique_ptr<PyNccl>> connect_devices(const Paths& paths, const std::vector<int>& devices,
                                                     double timeout_s) {
  const NcclLibrary& library = usable_nccl_library(paths);
  const NcclUniqueId id = id_of(std::string(unique_id(paths)));
  std::vector<NcclCommunicator::Member> members;
  for (const int device : devices) {
    members.push_back({static_cast<int>(members.size()), device});
  }
  // A failure of one device is one of all: their kernels wait for each other.
  struct Failure {
    std::mutex mutex;
    std::unique_ptr<CollectivesError> first;
  };
  const auto failed = std::make_shared<Failure>();
  NcclGroup group;
  group.failure = [failed] {
    const std::lock_guard guard(failed->mutex);
    return failed->first == nullptr ? nullptr : std::make_unique<CollectivesError>(*failed->first);
  };
  group.fail = [failed](const CollectivesError& error) {
    const std::lock_guard guard(failed->mutex);
    if (failed->first == nullptr) {
      failed->first = std::make_unique<CollectivesError>(error);
    }
  };
  std::vector<std::shared_ptr<NcclCommunicator>> all;
  {
    const Unlocked unlocked;
    all = NcclCommunicator::create(library, device_api(), id, static_cast<int>(members.size()), members, timeout_s,
                                   timeout_s, group);
  }
  std::vector<std::unique_ptr<PyNccl>> made;
  for (auto& nccl : all) {
    made.push_back(std::make_unique<PyNccl>());
    made.back()->nccl = std::move(nccl);
    made.back()->alone = true;
  }
  return made;
}

// (collective, inputs, outputs, lengths, dtype, shapes, peer, scalar, options): see bind_nccl()
NcclCall call_of(const py::tuple& fields) {
  enum : std::uint8_t { kCollective, kInputs, kOutputs, kLengths, kDType, kShapes, kPeer, kScalar, kOptions };
  const CallOptions options = options_of(py::handle(fields[kOptions]));
  Call asked;
  read_options(options, &asked);
  NcclCall call;
  const auto collective = fields[kCollective].cast<std::string>();
  const bool message = collective == "send" || collective == "recv";
  call.collective = message ? Collective::kMessage : parse_collective(collective);
  call.sending = collective == "send";
  for (const auto address : fields[kInputs].cast<std::vector<std::uintptr_t>>()) {
    call.inputs.push_back(reinterpret_cast<const void*>(address));
  }
  for (const auto address : fields[kOutputs].cast<std::vector<std::uintptr_t>>()) {
    call.outputs.push_back(reinterpret_cast<void*>(address));
  }
  call.lengths = fields[kLengths].cast<std::vector<std::int64_t>>();
  call.dtype = parse_dtype(fields[kDType].cast<std::string>());
  for (const auto& shape : fields[kShapes].cast<std::vector<std::vector<std::int64_t>>>()) {
    call.shapes.add(shape);
  }
  call.peer = fields[kPeer].cast<int>();
  const auto scalar = fields[kScalar].cast<std::string>();
  const auto* bytes = reinterpret_cast<const std::byte*>(scalar.data());
  call.factor.assign(bytes, bytes + scalar.size());
  call.op = asked.op;
  call.root = asked.root;
  call.timeout_s = asked.timeout_s;
  call.name = asked.name;
  call.stream = reinterpret_cast<void*>(py::handle(options.stream).cast<std::uintptr_t>());
  return call;
}

// A barrier in which the ranks compare their calls, before NCCL gets any of them: with different calls it would hang,
// or move the wrong bytes.
void agree(Communicator& host, const NcclCall& asked) {
  Call call;
  call.collective = asked.collective;
  call.op = asked.op;
  call.dtype = asked.dtype;
  call.root = asked.root;
  call.lengths = asked.lengths;
  call.shapes = asked.shapes;
  call.by_nccl = true;
  call.timeout_s = asked.timeout_s;
  call.name = asked.name;
  std::shared_ptr<Work> work;
  {
    const Unlocked unlocked;
    if (asked.collective == Collective::kMessage) {
      call.message = {asked.peer, 0, asked.sending};
      work = host.post_message(call, false);
    } else {
      work = host.post(call, false);
    }
  }
  if (!wait_interruptibly(host, work)) {
    throw py::error_already_set();
  }
}

PyNcclWork run(const PyNccl& self, const py::tuple& fields) {
  const NcclCall call = call_of(fields);
  {
    const Unlocked unlocked;
    self.nccl->check(call);
  }
  if (const auto host = self.host.lock(); host != nullptr) {
    agree(*host, call);
  } else if (!self.alone) {
    throw CollectivesError(ErrorKind::kClosed, "the communicator is gone", {});
  }
  const NcclCommunicator::RankCall rank_call{self.nccl.get(), &call};
  const Unlocked unlocked;
  return {NcclCommunicator::start({&rank_call, 1}).front()};
}

std::vector<PyNcclWork> run_group(const std::vector<const PyNccl*>& all, const std::vector<py::tuple>& fields) {
  std::vector<NcclCall> calls;
  std::vector<NcclCommunicator::RankCall> rank_calls;
  calls.reserve(fields.size());
  for (std::size_t i = 0; i < fields.size(); ++i) {
    calls.push_back(call_of(fields[i]));
    rank_calls.push_back({all.at(i)->nccl.get(), &calls.back()});
  }
  const Unlocked unlocked;
  std::vector<PyNcclWork> works;
  for (auto& work : NcclCommunicator::start(rank_calls)) {
    works.push_back({std::move(work)});
  }
  return works;
}

void close_all(const std::vector<const PyNccl*>& all) {
  std::vector<NcclCommunicator*> communicators;
  for (const PyNccl* one : all) {
    communicators.push_back(one->nccl.get());
  }
  const Unlocked unlocked;
  NcclCommunicator::close(communicators);
}

}  // namespace

void bind_nccl(py::module_& m) {
  py::class_<PyNcclWork>(m, "NcclWork", "A collective in flight on a device.")
      .def("wait", &PyNcclWork::wait, py::arg("timeout") = -1.0,
           "Waits until the device has done it and raises its error. False after `timeout` seconds (never when < 0).")
      .def(
          "done",
          [](const PyNcclWork& w) {
            const Unlocked unlocked;
            return w.work->communicator->done(*w.work);
          },
          "True when the collective is over, well or not.");
  py::class_<PyNccl>(m, "Nccl", "One rank of a communicator of NCCL, on one device.")
      .def_property_readonly(
          "device", [](const PyNccl& n) { return n.nccl->device(); }, "The number of the device.")
      .def_property_readonly(
          "failed", [](const PyNccl& n) { return n.nccl->failed(); }, "No call can be made any more.")
      .def("run", &run, py::arg("call"),
           "Agrees with the other ranks about a call and puts it into its stream: (collective, addresses of inputs, "
           "of outputs, lengths, dtype, shapes, peer, factor as bytes of the dtype, options). Of the options the "
           "stream is an address, and the timeout is given.");
  m.def("_nccl_status", &status, py::arg("paths"),
        "What was found of NCCL: usable, version, code, path, where, why (not usable). The search is made once.");
  m.def("_nccl_unique_id", &unique_id, py::arg("paths"), "An id by which the ranks of a communicator meet.");
  m.def(
      "_device_bus_id",
      [](int device) {
        char id[64] = "";
        check_device(device_api().device_bus_id(device, id, sizeof id), "asking where on the bus a device is");
        return std::string(id);
      },
      py::arg("device"), "Where on the bus a device is.");
  m.def(
      "_nccl_lacks",
      [](const Paths& paths, const std::string& collective, const std::string& op, const std::string& dtype) {
        return nccl_lacks(parse_collective(collective), parse_op(op), parse_dtype(dtype), nccl_library(paths).version);
      },
      py::arg("paths"), py::arg("collective"), py::arg("op"), py::arg("dtype"),
      "Why NCCL cannot do such a collective; empty where it can.");
  m.def("_nccl_connect", &connect, py::arg("communicator"), py::arg("paths"), py::arg("id"), py::arg("device"),
        py::arg("timeout"), "The NCCL side of a communicator. A collective call.");
  m.def("_nccl_connect_devices", &connect_devices, py::arg("paths"), py::arg("devices"), py::arg("timeout"),
        "One rank for each device, all of them in this process.");
  m.def("_nccl_close", &close_all, py::arg("ranks"),
        "Waits for the calls in flight, then leaves. Twice does nothing. Ranks of one process are closed together.");
  m.def("_nccl_run_group", &run_group, py::arg("ranks"), py::arg("calls"),
        "Calls of several ranks of this process, as one group of NCCL's.");
}

}  // namespace collectives
