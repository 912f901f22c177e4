#include "bindings/testing/reduce_testing.h"

#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/types.h"
#include "reduce/reducer.h"

namespace collectives {
namespace {

std::vector<std::string> supported_isas() {
  std::vector<std::string> names;
  for (const Reducer& reducer : reducers()) {
    if (reducer.supported()) names.emplace_back(reducer.isa);
  }
  return names;
}

const Reducer& find_reducer(const std::string& isa) {
  for (const Reducer& reducer : reducers()) {
    if (reducer.isa == isa && reducer.supported()) return reducer;
  }
  std::string message = "unknown instruction set \"" + isa + "\": accepted are ";
  for (const std::string& supported : supported_isas()) {
    if (message.back() != ' ') message += ", ";
    message += supported;
  }
  throw ArgumentError(message);
}

template <class Pointer>
std::vector<Pointer> pointers(const std::vector<std::uintptr_t>& addresses) {
  std::vector<Pointer> result;
  result.reserve(addresses.size());
  for (const std::uintptr_t address : addresses) {
    result.push_back(reinterpret_cast<Pointer>(address));  // NOLINT(performance-no-int-to-ptr): ctypes gives integers
  }
  return result;
}

void reduce_addresses(const std::string& isa, const std::string& dtype, const std::string& op, bool finish,
                      double divisor, const std::vector<std::uintptr_t>& sources,
                      const std::vector<std::uintptr_t>& destinations, std::size_t count) {
  const ReduceFunction kernel = find_reducer(isa).kernel(parse_dtype(dtype), parse_op(op), finish);
  if (kernel == nullptr) throw ArgumentTypeError("no kernel for op " + op + " of dtype " + dtype);
  const auto from = pointers<const void*>(sources);
  const auto to = pointers<void*>(destinations);
  kernel(to.data(), static_cast<int>(to.size()), from.data(), static_cast<int>(from.size()), count, divisor);
}

void scale_addresses(const std::string& isa, const std::string& dtype, double factor, std::uintptr_t source,
                     std::uintptr_t destination, std::size_t count) {
  const ScaleFunction kernel = find_reducer(isa).scale(parse_dtype(dtype));
  if (kernel == nullptr) throw ArgumentTypeError("no kernel that scales dtype " + dtype);
  const auto from = pointers<const void*>({source});
  const auto to = pointers<void*>({destination});
  kernel(to[0], from[0], count, factor);
}

template <class Enum>
std::vector<std::string> names(int count) {
  std::vector<std::string> result;
  for (int i = 0; i < count; ++i) result.emplace_back(name(static_cast<Enum>(i)));
  return result;
}

}  // namespace

void bind_reduce_testing(pybind11::module_& m) {
  namespace py = pybind11;
  m.def("_isas", &supported_isas, "Names of the instruction sets that this machine has reducers for, best first.");
  m.def(
      "_best_isa", [] { return std::string(best_reducer().isa); },
      "Name of the instruction set that is used; the environment variable COLLECTIVES_ISA overrides the choice.");
  m.def("_reduce", &reduce_addresses, py::arg("isa"), py::arg("dtype"), py::arg("op"), py::arg("finish"),
        py::arg("divisor"), py::arg("sources"), py::arg("destinations"), py::arg("count"),
        "Run one kernel over buffers given by their addresses.");
  m.def("_scale", &scale_addresses, py::arg("isa"), py::arg("dtype"), py::arg("factor"), py::arg("source"),
        py::arg("destination"), py::arg("count"),
        "Multiply the elements at one address by a factor, to another or the same address.");
  m.def("_dtype_names", [] { return names<DType>(kDTypes); }, "The element types, by number.");
  m.def(
      "_dlpack_codes",
      [] {
        std::vector<int> codes;
        for (const DTypeFacts& facts : kDTypeFacts) codes.push_back(static_cast<int>(facts.dlpack));
        return codes;
      },
      "DLDataTypeCode of the element types, by number.");
  m.def("_op_names", [] { return names<Op>(kOps); }, "The operations, by number.");
  m.def(
      "_has_kernel",
      [](const std::string& op, const std::string& dtype) { return has_kernel(parse_op(op), parse_dtype(dtype)); },
      py::arg("op"), py::arg("dtype"), "Whether an operation has a meaning for an element type, both by name.");
}

}  // namespace collectives
