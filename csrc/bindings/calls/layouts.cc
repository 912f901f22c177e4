#include "bindings/calls/layouts.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "bindings/calls/communicator.h"

namespace collectives {
namespace {

namespace py = pybind11;

// As DESCRIPTION in _calls/layout.py: dtype, number of dimensions, dimensions.
constexpr int kDescription = 2 + kMostDimensions;
constexpr int kHead = 2;  // as in _calls/vector.py: number of tensors, whether they are a list

Span bytes_of(LayoutTable& values) {
  return {reinterpret_cast<std::byte*>(values.data()), static_cast<std::int64_t>(values.size() * sizeof values[0])};
}

void describe(const PlainArray& x, std::int64_t* row) {
  row[0] = static_cast<std::int64_t>(x.dtype);
  row[1] = x.dimensions;
  std::copy_n(x.shape, x.dimensions, row + 2);
}

// The tables belong to this call and are not thread_local: while it waits, a signal handler may come here again.
bool run(Communicator& communicator, Collective collective, int root, LayoutTable& in, LayoutTable& out) {
  Call call;
  call.collective = collective;
  call.dtype = DType::kInt64;
  call.root = root;
  call.input.assign(1, bytes_of(in));
  call.output.assign(1, bytes_of(out));
  return run_to_end(communicator, call);
}

}  // namespace

std::optional<LayoutTable> exchange_layouts(Communicator& communicator, const PlainArray& x) {
  LayoutTable own(kDescription, 0);
  describe(x, own.data());
  LayoutTable everyone(own.size() * static_cast<std::size_t>(communicator.size()));
  return run(communicator, Collective::kAllGather, 0, own, everyone) ? std::optional(std::move(everyone))
                                                                     : std::nullopt;
}

bool all_equal(const LayoutTable& layouts) {
  return std::equal(layouts.begin() + kDescription, layouts.end(), layouts.begin());
}

std::optional<LayoutTable> broadcast_layout(Communicator& communicator, int root, const PlainArray* x,
                                            std::int64_t rows) {
  LayoutTable layout(kHead + kDescription + static_cast<std::size_t>(communicator.size()), 0);
  if (x != nullptr) {
    layout[0] = 1;
    describe(*x, layout.data() + kHead);
    std::fill(layout.begin() + kHead + kDescription, layout.end(), rows);
  }
  return run(communicator, Collective::kBroadcast, root, layout, layout) ? std::optional(std::move(layout))
                                                                         : std::nullopt;
}

std::int64_t rows_of(const LayoutTable& layout, PlainArray* x) {
  const auto rows = layout.begin() + kHead + kDescription;
  const bool one_array = layout[0] == 1 && layout[1] == 0;
  if (!one_array || !std::all_of(rows, layout.end(), [&](std::int64_t n) { return n == *rows; })) {
    return -1;
  }
  *x = PlainArray{};
  x->dtype = static_cast<DType>(layout[kHead]);
  x->dimensions = static_cast<int>(layout[kHead + 1]);
  x->shape = layout.data() + kHead + 2;
  x->numpy = true;
  return *rows;
}

py::object as_array(const LayoutTable& table) {
  auto length = static_cast<npy_intp>(table.size());
  auto array = py::reinterpret_steal<py::object>(PyArray_SimpleNew(1, &length, NPY_INT64));
  if (!array) {
    throw py::error_already_set();
  }
  std::memcpy(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr())), table.data(),
              table.size() * sizeof table[0]);
  return array;
}

}  // namespace collectives
