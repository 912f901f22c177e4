#include "bindings/devices/device_tensors.h"

#include <string>
#include <vector>

#include "bindings/arrays/torch_tensors.h"
#include "bindings/calls/plain_array.h"
#include "bindings/calls/unlocked.h"
#include "device/replicas.h"
#include "reduce/reducer.h"

namespace collectives {
namespace {

namespace py = pybind11;

// cudaStreamLegacy, the stream for which PyTorch's handle is nullptr.
void* const kLegacy = reinterpret_cast<void*>(1);

// False for reductions that the general path refuses or does on the host.
bool can_reduce(Op op, DType dtype) {
  return has_kernel(op, dtype) && !(dtype == DType::kBool && (op == Op::kSum || op == Op::kAvg));
}

class Batch {
 public:
  bool add(py::handle values, Op op, int destinations) {
    if ((!PyList_CheckExact(values.ptr()) && !PyTuple_CheckExact(values.ptr())) || destinations < 1) {
      return false;
    }
    const py::tuple held(py::reinterpret_borrow<py::object>(values));  // another thread may change a list
    const auto n = static_cast<Py_ssize_t>(held.size());
    if (n == 0 || (!tensors_.empty() && n != replicas_)) {
      return false;
    }
    replicas_ = n;
    PlainArray first{};
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* const value = PyTuple_GET_ITEM(held.ptr(), i);
      PlainArray seen{};
      const int device = read_device_tensor(value, &seen);
      if (device < 0 || seen.span.bytes == 0 || (device_ >= 0 && device != device_)) {
        return false;
      }
      device_ = device;
      first = i == 0 ? seen : first;
      if (!same_shape(seen, first)) {
        return false;
      }
      kept_.push_back(py::reinterpret_borrow<py::object>(value));
      sources_.push_back(seen.span.data);
    }
    if (!can_reduce(op, first.dtype)) {
      return false;
    }
    py::list results(destinations);
    for (int d = 0; d < destinations; ++d) {
      auto made = py::reinterpret_steal<py::object>(new_device_tensor(kept_[kept_.size() - n].ptr()));
      if (!made) {
        throw py::error_already_set();
      }
      PlainArray seen{};
      if (read_device_tensor(made.ptr(), &seen) != device_ || !same_shape(seen, first)) {
        return false;
      }
      destinations_.push_back(seen.span.data);
      results[d] = std::move(made);
    }
    results_.append(std::move(results));
    ReplicaTensor& tensor = tensors_.emplace_back().arrays;
    tensor.dtype = first.dtype;
    tensor.op = op;
    tensor.count = first.span.bytes / static_cast<std::int64_t>(size_of(first.dtype));
    ends_.push_back(destinations_.size());
    return true;
  }

  std::optional<py::list> reduce(Combination combination, int packs) {
    void* stream = nullptr;
    if (tensors_.empty() || !current_torch_stream(device_, &stream)) {
      return std::nullopt;
    }
    const std::vector<DeviceStream> places(replicas_, DeviceStream{device_, stream == nullptr ? kLegacy : stream});
    const std::vector<int> owners(destinations_.size(), 0);  // all on one device, so the owners do not matter
    std::size_t begin = 0;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const std::size_t count = ends_[t] - begin;
      tensors_[t].arrays.sources = {sources_.data() + t * replicas_, static_cast<std::size_t>(replicas_)};
      tensors_[t].arrays.destinations = {destinations_.data() + begin, count};
      tensors_[t].owners = {owners.data() + begin, count};
      begin = ends_[t];
    }
    {
      const Unlocked unlocked;
      reduce_device_replicas(combination, packs, "", tensors_, places);
    }
    return std::move(results_);
  }

 private:
  py::list results_;
  int device_ = -1;
  Py_ssize_t replicas_ = 0;
  std::vector<DeviceTensor> tensors_;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
  std::vector<std::size_t> ends_;  // of the destinations of each tensor
  std::vector<py::object> kept_;   // the lists that hold them may change while the interpreter is unlocked
};

}  // namespace

std::optional<py::list> reduce_device_tensors(Combination combination, int packs, const py::list& pairs) {
  Batch batch;
  for (const py::handle pair : pairs) {
    const auto fields = py::reinterpret_borrow<py::tuple>(pair);
    if (!batch.add(fields[0], parse_op(fields[1].cast<std::string>()), fields[2].cast<int>())) {
      return std::nullopt;
    }
  }
  return device_status().available ? batch.reduce(combination, packs) : std::nullopt;
}

}  // namespace collectives
