#include "bindings/arrays/torch_tensors.h"

#include <algorithm>
#include <array>
#include <vector>

#include "bindings/arrays/dlpack_types.h"
#include "bindings/setup/kept.h"

namespace collectives {
namespace {

// What is used of PyTorch: found once and kept.
struct Torch {
  // Only tensors of exactly these types are read: a subclass may have no memory, or give it another meaning.
  PyObject* tensor = nullptr;
  PyObject* parameter = nullptr;
  PyObject* empty_like = nullptr;
  PyObject* contiguous = nullptr;  // torch.contiguous_format: C order
  const DlExchange* exchange = nullptr;
};

PyObject* attribute(PyObject* object, const char* name) {
  return object == nullptr ? nullptr : PyObject_GetAttrString(object, name);
}

// A new record, or nullptr.
const Torch* find() {
  static constinit KeptName name("torch");
  PyObject* module = PyImport_GetModule(name);  // does not import it: a program that has tensors has done that
  PyObject* nn = attribute(module, "nn");
  PyObject* tensor = attribute(module, "Tensor");
  PyObject* parameter = attribute(nn, "Parameter");
  PyObject* empty_like = attribute(module, "empty_like");
  PyObject* contiguous = attribute(module, "contiguous_format");
  PyObject* capsule = attribute(tensor, "__dlpack_c_exchange_api__");
  const DlExchange* exchange = nullptr;
  if (capsule != nullptr) {
    exchange = static_cast<const DlExchange*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  }
  PyErr_Clear();
  const bool found = exchange != nullptr && exchange->major == 1 && exchange->view != nullptr && parameter != nullptr &&
                     empty_like != nullptr && contiguous != nullptr;
  const Torch* const torch =
      found ? new Torch{Py_NewRef(tensor), Py_NewRef(parameter), Py_NewRef(empty_like), Py_NewRef(contiguous), exchange}
            : nullptr;
  for (PyObject* object : {module, nn, tensor, parameter, empty_like, contiguous, capsule}) {
    Py_XDECREF(object);
  }
  return torch;
}

const Torch* torch() {
  static constinit KeptRecord<Torch> found;
  return found.get(find, [](const Torch& late) {
    for (PyObject* object : {late.tensor, late.parameter, late.empty_like, late.contiguous}) {
      Py_DECREF(object);
    }
  });
}

std::uint8_t bits_of(const DTypeFacts& facts) { return static_cast<std::uint8_t>(8 * facts.bytes); }

constexpr std::uintptr_t kLowest = 1 << 16;  // lower addresses are never mapped

bool is_false(PyObject* object, PyObject* method) {
  PyObject* result = PyObject_CallMethodNoArgs(object, method);
  const bool no = result == Py_False;
  Py_XDECREF(result);
  PyErr_Clear();
  return no;
}

// Whether the values of the tensor are those in its memory. PyTorch may only flag a tensor as conjugated, negated or
// zero, which DLPack does not export.
bool means_its_memory(PyObject* object, std::uint8_t code) {
  static constinit KeptName negative("is_neg");
  static constinit KeptName conjugate("is_conj");
  static constinit KeptName zeros("_is_zerotensor");
  return is_false(object, negative) && is_false(object, zeros) &&
         (code != static_cast<std::uint8_t>(DLPackCode::kComplex) || is_false(object, conjugate));
}

// Fills `result` where the tensor lies on a device of that type and is plain, and returns the device's number; else -1.
int read(PyObject* object, std::int32_t device_type, PlainArray* result) {
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  const Torch* const known = torch();
  if (known == nullptr || (type != known->tensor && type != known->parameter)) {
    return -1;
  }
  DlTensor tensor{};
  if (known->exchange->view(object, &tensor) != 0) {
    PyErr_Clear();
    return -1;
  }
  const auto* const found = std::ranges::find_if(kDTypeFacts, [&](const DTypeFacts& f) {
    return static_cast<std::uint8_t>(f.dlpack) == tensor.code && bits_of(f) == tensor.bits;
  });
  if (tensor.device_type != device_type || tensor.lanes != 1 || found == kDTypeFacts.end() || !in_c_order(tensor) ||
      !means_its_memory(object, tensor.code)) {
    return -1;
  }
  const auto dtype = static_cast<DType>(found - kDTypeFacts.begin());
  std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype));
  for (std::int32_t d = 0; d < tensor.dimensions; ++d) {
    bytes *= tensor.shape[d];
  }
  auto* const data = static_cast<std::byte*>(tensor.data) + tensor.offset;
  const auto alignment = std::min<std::uintptr_t>(size_of(dtype), alignof(std::int64_t));
  // Of a storage that was freed the address is nullptr plus the offset.
  if ((reinterpret_cast<std::uintptr_t>(data) < kLowest && bytes > 0) ||
      reinterpret_cast<std::uintptr_t>(data) % alignment != 0) {
    return -1;
  }
  *result = {{data, bytes}, dtype, tensor.dimensions, tensor.shape, true, false};
  return tensor.device;
}

}  // namespace

bool read_tensor(PyObject* object, PlainArray* result) { return read(object, kDlCpu, result) >= 0; }

int read_device_tensor(PyObject* object, PlainArray* result) { return read(object, kDlCuda, result); }

bool current_torch_stream(int device, void** stream) {
  const DlExchange& exchange = *torch()->exchange;
  const bool found = exchange.stream != nullptr && exchange.stream(kDlCuda, device, stream) == 0;
  PyErr_Clear();
  return found;
}

pybind11::object alias_of_tensor(PyObject* tensor) {
  static constinit KeptName detach("detach");
  auto result = pybind11::reinterpret_steal<pybind11::object>(PyObject_CallMethodNoArgs(tensor, detach));
  if (!result) {
    throw pybind11::error_already_set();
  }
  return result;
}

PyObject* new_tensor(const PlainArray& like, std::int64_t rows) {
  std::vector<std::int64_t> shape(like.shape, like.shape + like.dimensions);
  shape[0] = rows;
  const DTypeFacts& type = facts(like.dtype);
  DlTensor wanted{nullptr,      kDlCpu,  0, like.dimensions, static_cast<std::uint8_t>(type.dlpack), bits_of(type), 1,
                  shape.data(), nullptr, 0};
  const auto set_error = [](void* /*context*/, const char* kind, const char* text) {
    PyErr_Format(PyExc_MemoryError, "%s: %s", kind, text);
  };
  const DlExchange& exchange = *torch()->exchange;
  DlVersioned* made = nullptr;
  void* object = nullptr;
  if (exchange.allocate(&wanted, &made, nullptr, set_error) != 0 || exchange.to_object(made, &object) != 0) {
    return nullptr;
  }
  return static_cast<PyObject*>(object);
}

// Not by exchange.allocate: record_stream() does nothing for its tensors, since their memory is not from PyTorch's
// allocator.
PyObject* new_device_tensor(PyObject* like) {
  static constinit KeptName format("memory_format");
  static constinit Kept names;
  PyObject* const arguments[] = {like, torch()->contiguous};
  return PyObject_Vectorcall(torch()->empty_like, arguments, 1,
                             names.get([] { return PyTuple_Pack(1, static_cast<PyObject*>(format)); }));
}

}  // namespace collectives
