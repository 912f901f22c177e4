// The layouts (dtypes and shapes) that ranks exchange before a vector collective whose caller does not give the
// lengths. Python does the same for lists of tensors, in _calls/layout.py and _calls/vector.py. Some ranks of a call
// may come from here and others from there, so both must send the same bytes: change them together.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/calls/plain_array.h"
#include "engine/communicator.h"

namespace collectives {

constexpr int kMostDimensions = 8;
using LayoutTable = std::vector<std::int64_t>;

// Gathers the layouts of all ranks, a row for each, as exchange() of _calls/layout.py. nullopt with the Python error
// set.
std::optional<LayoutTable> exchange_layouts(Communicator& communicator, const PlainArray& x);

// Whether all rows are equal.
bool all_equal(const LayoutTable& layouts);

// The first broadcast before a scatter, as in _calls/vector.py. The root passes x, and the number of its rows that each
// rank gets; the other ranks pass nullptr. nullopt with the Python error set.
std::optional<LayoutTable> broadcast_layout(Communicator& communicator, int root, const PlainArray* x,
                                            std::int64_t rows);

// The number of rows for each rank, where the root scatters one array in equal parts; -1 where it does not. Sets the
// dtype and the shape of `x`; the shape points into `layout`.
std::int64_t rows_of(const LayoutTable& layout, PlainArray* x);

// The table as a NumPy array of one dimension.
pybind11::object as_array(const LayoutTable& table);

}  // namespace collectives
