#include "bindings/arrays/dlpack.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "bindings/arrays/dlpack_types.h"
#include "core/error.h"

namespace collectives {
namespace {

namespace py = pybind11;

constexpr const char* kCapsule = "dltensor";
constexpr const char* kVersionedCapsule = "dltensor_versioned";
constexpr std::uint64_t kReadOnly = 1;

// What an array that was handed over needs until its taker deletes it.
struct Handed {
  DlManaged managed{};
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  PyObject* owner = nullptr;
};

// From any thread of the taker; it may come when Python has gone.
void delete_handed(DlManaged* managed) {
  auto* handed = static_cast<Handed*>(managed->context);
  if (Py_IsInitialized() != 0) {
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(handed->owner);
    PyGILState_Release(state);
  }
  delete handed;
}

void delete_untaken(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kCapsule) != 0) {
    auto* managed = static_cast<DlManaged*>(PyCapsule_GetPointer(capsule, kCapsule));
    managed->deleter(managed);
  }
}

py::object to_dlpack(const py::object& owner, std::uintptr_t pointer, int device_type, int device,
                     std::vector<std::int64_t> shape, int code, int bits) {
  auto* handed = new Handed;
  handed->shape = std::move(shape);
  handed->strides.resize(handed->shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = handed->shape.size(); d-- > 0;) {
    handed->strides[d] = stride;
    stride *= handed->shape[d];
  }
  handed->owner = owner.inc_ref().ptr();
  handed->managed = {{reinterpret_cast<void*>(pointer), device_type, device,
                      static_cast<std::int32_t>(handed->shape.size()), static_cast<std::uint8_t>(code),
                      static_cast<std::uint8_t>(bits), 1, handed->shape.data(), handed->strides.data(), 0},
                     handed,
                     delete_handed};
  PyObject* capsule = PyCapsule_New(&handed->managed, kCapsule, delete_untaken);
  if (capsule == nullptr) {
    delete_handed(&handed->managed);
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(capsule);
}

py::dict look_at_dlpack(const py::object& capsule) {
  const DlTensor* tensor = nullptr;
  bool read_only = false;
  if (PyCapsule_IsValid(capsule.ptr(), kVersionedCapsule) != 0) {
    auto* versioned = static_cast<DlVersioned*>(PyCapsule_GetPointer(capsule.ptr(), kVersionedCapsule));
    if (versioned->major != 1) {
      throw ArgumentTypeError("the array is shown by version " + std::to_string(versioned->major) +
                              " of DLPack; version 1 is understood");
    }
    tensor = &versioned->tensor;
    read_only = (versioned->flags & kReadOnly) != 0;
  } else if (PyCapsule_IsValid(capsule.ptr(), kCapsule) != 0) {
    tensor = &static_cast<DlManaged*>(PyCapsule_GetPointer(capsule.ptr(), kCapsule))->tensor;
  } else {
    throw ArgumentTypeError("__dlpack__ returned no capsule of DLPack");
  }
  const std::vector<std::int64_t> shape(tensor->shape, tensor->shape + tensor->dimensions);
  py::dict result;
  result["pointer"] = reinterpret_cast<std::uintptr_t>(tensor->data) + tensor->offset;
  result["device"] = tensor->device;
  result["shape"] = py::tuple(py::cast(shape));
  result["contiguous"] = in_c_order(*tensor);
  result["read_only"] = read_only;
  result["dtype"] = py::make_tuple(tensor->code, tensor->bits, tensor->lanes);
  return result;
}

}  // namespace

void bind_dlpack(py::module_& m) {
  m.def("_to_dlpack", to_dlpack,
        "A capsule of DLPack that shows memory in C order; it keeps `owner` alive until its taker is done with it.",
        py::arg("owner"), py::arg("pointer"), py::arg("device_type"), py::arg("device"), py::arg("shape"),
        py::arg("code"), py::arg("bits"));
  m.def("_look_at_dlpack", look_at_dlpack,
        "What a capsule of DLPack says: pointer, device, shape, contiguous, read_only, and dtype as (code, bits, "
        "lanes). The capsule stays as it is, and the memory valid while it lives.",
        py::arg("capsule"));
}

}  // namespace collectives
