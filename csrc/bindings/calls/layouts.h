// What ranks tell each other before a collective of parts, where they are not told by the caller: Python does the same
// of lists of tensors, in _calls/layout.py and _calls/parts.py. A rank that goes either way meets ranks that go the
// other, so what changes here has to change there, too.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/calls/plain_array.h"
#include "engine/communicator.h"

namespace collectives {

constexpr int kMostDimensions = 8;
using Table = std::vector<std::int64_t>;

// _calls.layout.exchange() of describe(): what all ranks have, a row for each. nullopt with the Python error set.
std::optional<Table> exchange(Communicator& communicator, const PlainArray& x);

// Whether each row is like the first.
bool all_alike(const Table& exchanged);

// The first broadcast of _parts._tell(), by the rank that has x, of which each rank gets so many rows; by the others,
// which pass nullptr. nullopt with the Python error set.
std::optional<Table> tell(Communicator& communicator, int root, const PlainArray* x, std::int64_t rows);

// The rows for each rank in what was told, where it is one array in equal parts; then `x` gets its element type and
// shape, which stays with `told`. -1 for anything else.
std::int64_t rows_told(const Table& told, PlainArray* x);

// The same numbers as a NumPy array of one dimension.
pybind11::object as_array(const Table& table);

}  // namespace collectives
