#include "bindings/devices/replicas.h"

#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "bindings/arrays/arrays.h"
#include "bindings/calls/unlocked.h"
#include "bindings/devices/device_tensors.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "replicas/replicas.h"

namespace collectives {
namespace {

namespace py = pybind11;

// Releasing the interpreter's lock and acquiring it again costs as much as moving this many bytes.
constexpr std::int64_t kBriefBytes = 16 << 10;

PyArrayObject* as_array(PyObject* object) { return reinterpret_cast<PyArrayObject*>(object); }

// A new array like the first, in C order.
py::object new_like(PyArrayObject* array) {
  PyObject* made = PyArray_NewLikeArray(array, NPY_CORDER, nullptr, 0);
  if (made == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(made);
}

bool like_first(PyArrayObject* array, PyArrayObject* first) {
  return PyArray_TYPE(array) == PyArray_TYPE(first) && PyArray_NDIM(array) == PyArray_NDIM(first) &&
         PyArray_CompareLists(PyArray_DIMS(array), PyArray_DIMS(first), PyArray_NDIM(first));
}

// The tensors of a batch. The pointers of all of them lie in two vectors. References to the inputs are kept, since the
// lists that hold them may change while the interpreter is unlocked.
class Batch {
 public:
  // False where the values are not plain arrays of NumPy that are alike.
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
    PyArrayObject* first = nullptr;
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* value = PyTuple_GET_ITEM(held.ptr(), i);
      if (!PyArray_CheckExact(value) || !is_plain(as_array(value)) ||
          (first != nullptr && !like_first(as_array(value), first))) {
        return false;
      }
      first = first == nullptr ? as_array(value) : first;
      kept_.push_back(py::reinterpret_borrow<py::object>(value));
      sources_.push_back(PyArray_DATA(as_array(value)));
    }
    const int type = dtype_of(first);
    if (type < 0) {
      return false;
    }
    py::list results(destinations);
    for (int d = 0; d < destinations; ++d) {
      py::object made = new_like(first);
      destinations_.push_back(PyArray_DATA(as_array(made.ptr())));
      results[d] = std::move(made);
    }
    results_.append(std::move(results));
    ReplicaTensor& tensor = tensors_.emplace_back();
    tensor.dtype = static_cast<DType>(type);
    tensor.op = op;
    tensor.count = PyArray_SIZE(first);
    ends_.push_back(destinations_.size());
    bytes_ += static_cast<std::int64_t>(PyArray_NBYTES(first)) * (n + destinations);
    return true;
  }

  py::list reduce(Combination combination, int packs) {
    std::size_t begin = 0;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      tensors_[t].sources = {sources_.data() + t * replicas_, static_cast<std::size_t>(replicas_)};
      tensors_[t].destinations = {destinations_.data() + begin, ends_[t] - begin};
      begin = ends_[t];
    }
    std::optional<Unlocked> unlocked;
    if (bytes_ > kBriefBytes) {
      unlocked.emplace();
    }
    reduce_replicas(combination, packs, tensors_);
    unlocked.reset();
    return std::move(results_);
  }

 private:
  py::list results_;
  Py_ssize_t replicas_ = 0;
  std::int64_t bytes_ = 0;
  std::vector<ReplicaTensor> tensors_;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
  std::vector<std::size_t> ends_;  // of the destinations of each tensor
  std::vector<py::object> kept_;
};

std::optional<py::list> reduce(const std::string& combination, int packs, const py::list& pairs) {
  Batch batch;
  for (const py::handle pair : pairs) {
    const auto fields = py::reinterpret_borrow<py::tuple>(pair);
    if (!batch.add(fields[0], parse_op(fields[1].cast<std::string>()), fields[2].cast<int>())) {
      return reduce_device_tensors(parse_combination(combination), packs, pairs);
    }
  }
  return batch.reduce(parse_combination(combination), packs);
}

// `arrays` are contiguous, of one dtype, and of one shape except along `axis`.
void gather(const py::list& arrays, int axis, const py::list& results) {
  std::vector<RowSource> sources;
  std::int64_t rows = 1;
  std::int64_t bytes = 0;
  for (const py::handle object : arrays) {
    PyArrayObject* array = as_array(object.ptr());
    rows = PyArray_MultiplyList(PyArray_DIMS(array), axis);
    const auto size = static_cast<std::int64_t>(PyArray_NBYTES(array));
    sources.push_back({PyArray_DATA(array), rows == 0 ? 0 : size / rows});
    bytes += size;
  }
  std::vector<void*> destinations;
  for (const py::handle object : results) {
    destinations.push_back(PyArray_DATA(as_array(object.ptr())));
  }
  std::optional<Unlocked> unlocked;
  if (bytes > kBriefBytes) {
    unlocked.emplace();
  }
  gather_replicas(rows, sources, destinations);
}

}  // namespace

void bind_replicas(py::module_& m) {
  m.def("_reduce_replicas", reduce,
        "Reduces (arrays of the replicas, op, number of results) pairs into new arrays: of NumPy, or tensors of "
        "PyTorch on "
        "one CUDA device. None when an array cannot take part as it is.",
        py::arg("combination"), py::arg("packs"), py::arg("pairs"));
  m.def("_gather_replicas", gather,
        "Concatenates arrays along an axis into each of the results. All are contiguous and fit each other.",
        py::arg("arrays"), py::arg("axis"), py::arg("results"));
  m.def("_replica_bytes", replica_bytes,
        "Bytes of the inputs of all reductions over replicas that this process has done.");
  m.def("_limit_threads", ThreadPool::limit,
        "How many threads a reduction over replicas may use; 0: as many as there are cores for this process.",
        py::arg("threads"));
}

}  // namespace collectives
