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

// What an exported array needs until its consumer deletes it.
struct Exported {
  DlManaged managed{};
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  PyObject* owner = nullptr;
};

// The deleter. A consumer may call it on any thread, also after the end of Python.
void delete_exported(DlManaged* managed) {
  auto* exported = static_cast<Exported*>(managed->context);
  if (Py_IsInitialized() != 0) {
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(exported->owner);
    PyGILState_Release(state);
  }
  delete exported;
}

void delete_unconsumed(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kCapsule) != 0) {
    auto* managed = static_cast<DlManaged*>(PyCapsule_GetPointer(capsule, kCapsule));
    managed->deleter(managed);
  }
}

py::object to_dlpack(const py::object& owner, std::uintptr_t pointer, int device_type, int device,
                     std::vector<std::int64_t> shape, int code, int bits) {
  auto* exported = new Exported;
  exported->shape = std::move(shape);
  exported->strides.resize(exported->shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = exported->shape.size(); d-- > 0;) {
    exported->strides[d] = stride;
    stride *= exported->shape[d];
  }
  exported->owner = owner.inc_ref().ptr();
  exported->managed = {{reinterpret_cast<void*>(pointer), device_type, device,
                        static_cast<std::int32_t>(exported->shape.size()), static_cast<std::uint8_t>(code),
                        static_cast<std::uint8_t>(bits), 1, exported->shape.data(), exported->strides.data(), 0},
                       exported,
                       delete_exported};
  PyObject* capsule = PyCapsule_New(&exported->managed, kCapsule, delete_unconsumed);
  if (capsule == nullptr) {
    delete_exported(&exported->managed);
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(capsule);
}

py::dict read_dlpack(const py::object& capsule) {
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
        "A DLPack capsule that exports memory in C order; it keeps `owner` alive until its consumer deletes it.",
        py::arg("owner"), py::arg("pointer"), py::arg("device_type"), py::arg("device"), py::arg("shape"),
        py::arg("code"), py::arg("bits"));
  m.def("_read_dlpack", read_dlpack,
        "The fields of a DLPack capsule: pointer, device, shape, contiguous, read_only, and dtype as (code, bits, "
        "lanes). Does not consume the capsule; the memory is valid as long as the capsule lives.",
        py::arg("capsule"));
}

}  // namespace collectives
