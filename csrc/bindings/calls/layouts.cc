#include "bindings/calls/layouts.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "bindings/arrays/arrays.h"
#include "bindings/calls/communicator.h"
#include "bindings/calls/options.h"
#include "core/error.h"

namespace collectives {
namespace {

namespace py = pybind11;

constexpr std::size_t kHead = 2;  // of the broadcast of a scatter: number of tensors, whether they are a list

// What follows a description where ranks tell each other by pairs.
enum Paired : std::uint8_t {
  kRows,      // that this rank gives to the other
  kExpected,  // of the other
  // In elements, of all tensors together, and of use in the row of the first:
  kBegin,   // where the part for the other begins
  kBefore,  // how many parts for others, not empty, are before it
  kSays,    // whether this rank expects anything
  kTotal,   // from here on: PartsRow
  kLongestToAnother,
  kReaders,
  kShortest,
  kShortestFilled,
  kLongest,
  kPaired
};
constexpr std::size_t kFinding = 4;  // words of LayoutExchange::Finding

std::int64_t row_elements(const std::int64_t* description) {
  std::int64_t elements = 1;
  for (std::int64_t i = 1; i < description[1]; ++i) {
    elements *= description[2 + i];
  }
  return elements;
}

Span bytes_of(LayoutTable& values, std::size_t from = 0) {
  return {reinterpret_cast<std::byte*>(values.data() + from),
          static_cast<std::int64_t>((values.size() - from) * sizeof values[0])};
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

void describe(const PlainArray& x, std::int64_t* row) { describe(x.dtype, x.dimensions_of(), row); }

// As Python writes a shape, with the dtype.
std::string text(const std::int64_t* row) {
  std::string shape;
  for (std::int64_t i = 0; i < row[1]; ++i) {
    shape += (i == 0 ? "" : ", ") + std::to_string(row[2 + i]);
  }
  return "shape (" + shape + (row[1] == 1 ? ",) of " : ") of ") + std::string(name(static_cast<DType>(row[0])));
}

std::string rank_and(const char* verb, int rank) { return "rank " + std::to_string(rank) + verb; }

}  // namespace

void describe(DType dtype, std::span<const std::int64_t> shape, std::int64_t* row) {
  std::fill_n(row, kDescription, 0);
  row[0] = static_cast<std::int64_t>(dtype);
  row[1] = static_cast<std::int64_t>(shape.size());
  std::ranges::copy(shape, row + 2);
}

LayoutExchange::LayoutExchange(const Call& call, int rank, int size, const Own& own, bool whole)
    : rank_(rank), size_(size), tensors_(own.descriptions.size() / kDescription), is_list_(own.is_list), whole_(whole) {
  static_cast<CallHead&>(call_) = call;
  call_.timeout_s = call.timeout_s;
  call_.name = call.name.empty() ? std::string() : call.name + " (lengths)";
  const auto ranks = static_cast<std::size_t>(size);
  const bool all_to_all = call.collective == Collective::kAllToAll;
  if (paired()) {
    tell_each(own);
    return;
  }
  columns_ = kDescription + (scatters() ? ranks : all_to_all ? 2 * ranks : 0);
  own_.assign(tensors_ * columns_, -1);
  for (std::size_t t = 0; t < tensors_; ++t) {
    auto to = own_.begin() + static_cast<std::ptrdiff_t>(t * columns_);
    to = std::copy_n(own.descriptions.begin() + static_cast<std::ptrdiff_t>(t * kDescription), kDescription, to);
    for (const auto* part : {&own.rows, &own.expected}) {
      if (!part->empty()) {
        to = std::copy_n(part->begin() + static_cast<std::ptrdiff_t>(t * ranks), ranks, to);
      }
    }
  }
}

void LayoutExchange::tell_each(const Own& own) {
  const auto ranks = static_cast<std::size_t>(size_);
  columns_ = kDescription + kPaired;
  std::vector<std::int64_t> gives(ranks, 0);
  for (std::size_t i = 0; i < own.rows.size(); ++i) {
    gives[i % ranks] += own.rows[i] * row_elements(own.descriptions.data() + i / ranks * kDescription);
  }
  const PartsRow row = PartsRow::of(rank_, gives);
  own_.assign(ranks * tensors_ * columns_, 0);
  PlaceInRow place;
  for (std::size_t to = 0; to < ranks; ++to) {
    for (std::size_t t = 0; t < tensors_; ++t) {
      std::int64_t* const words = own_.data() + (to * tensors_ + t) * columns_;
      std::copy_n(own.descriptions.begin() + static_cast<std::ptrdiff_t>(t * kDescription), kDescription, words);
      std::int64_t* const more = words + kDescription;
      more[kRows] = own.rows[t * ranks + to];
      more[kExpected] = own.expected.empty() ? -1 : own.expected[t * ranks + to];
      more[kBegin] = place.begin;
      more[kBefore] = place.before;
      more[kSays] = own.expected.empty() ? 0 : 1;
      more[kTotal] = row.total;
      more[kLongestToAnother] = row.longest_to_another;
      more[kReaders] = row.readers;
      more[kShortest] = row.shortest;
      more[kShortestFilled] = row.shortest_filled;
      more[kLongest] = row.longest;
    }
    place.begin += gives[to];
    place.before += static_cast<int>(to) != rank_ && gives[to] > 0 ? 1 : 0;
  }
}

void LayoutExchange::fill(Call& call, Collective collective, Span in, Span out) const {
  call = call_;
  call.collective = collective;
  call.dtype = DType::kInt64;
  call.op = Op::kSum;
  call.root = collective == Collective::kBroadcast ? call_.root : 0;
  call.deterministic = false;
  call.input.assign(1, in);
  call.output.assign(1, out);
}

bool LayoutExchange::next(Call& call) {
  const int number = calls_++;
  if (paired()) {
    if (number == 0) {
      table_.resize(own_.size());
      fill(call, Collective::kAllToAll, bytes_of(own_), bytes_of(table_));
      return true;
    }
    check_alike(table_, tensors_, columns_, name(call_.collective));  // alike on all ranks: each has all descriptions
    if (number > 1 || !anyone_expects()) {
      return false;
    }
    const Finding own = contradiction();
    head_ = {own.tensor, own.from, own.given, own.expected};
    found_.resize(kFinding * static_cast<std::size_t>(size_));
    fill(call, Collective::kAllGather, bytes_of(head_), bytes_of(found_));
    return true;
  }
  if (!scatters()) {
    if (number == 0) {
      table_.resize(own_.size() * static_cast<std::size_t>(size_));
      fill(call, Collective::kAllGather, bytes_of(own_), bytes_of(table_));
    }
    return number == 0;
  }
  const bool here = rank_ == call_.root;
  if (number == 0) {
    head_.assign(kHead + columns_, 0);
    if (here) {
      head_[0] = static_cast<std::int64_t>(tensors_);
      head_[1] = is_list_ ? 1 : 0;
      std::copy_n(own_.begin(), tensors_ > 0 ? columns_ : 0, head_.begin() + kHead);
    }
    fill(call, Collective::kBroadcast, bytes_of(head_), bytes_of(head_));
    return true;
  }
  if (number > 1) {
    return false;
  }
  tensors_ = static_cast<std::size_t>(head_[0]);
  is_list_ = head_[1] != 0;
  if (here) {
    table_ = own_;
  } else {
    table_.assign(tensors_ * columns_, 0);
    std::copy_n(head_.begin() + kHead, tensors_ > 0 ? columns_ : 0, table_.begin());
  }
  if (tensors_ > 1) {
    const Span others = bytes_of(table_, columns_);
    fill(call, Collective::kBroadcast, others, others);
  }
  return tensors_ > 1;
}

bool LayoutExchange::know(LayoutTable first) {
  LayoutTable& known = scatters() ? head_ : table_;
  known = std::move(first);
  ++calls_;
  const std::size_t before = scatters() ? kHead : static_cast<std::size_t>(rank_) * own_.size();
  return (scatters() && rank_ != call_.root) ||
         std::equal(own_.begin(), own_.end(), known.begin() + static_cast<std::ptrdiff_t>(before));
}

const std::int64_t* LayoutExchange::row_for(int rank, std::size_t tensor) const {
  return own_.data() + (static_cast<std::size_t>(rank) * tensors_ + tensor) * columns_ + kDescription;
}

bool LayoutExchange::anyone_expects() const {
  bool any = false;
  for (int r = 0; r < size_ && tensors_ > 0; ++r) {
    any = any || description(r, 0)[kDescription + kSays] != 0;
  }
  return any;
}

LayoutExchange::Finding LayoutExchange::contradiction() const {
  for (std::size_t t = 0; t < tensors_; ++t) {
    for (int from = 0; from < size_; ++from) {
      const std::int64_t expected = row_for(from, t)[kExpected];
      if (expected >= 0 && expected != rows(from, rank_, t)) {
        return {static_cast<std::int64_t>(t), from, rows(from, rank_, t), expected};
      }
    }
  }
  return {};
}

std::shared_ptr<const OwnParts> LayoutExchange::own_parts() const {
  auto parts = std::make_shared<OwnParts>();
  parts->rank = rank_;
  parts->tensors = static_cast<int>(tensors_);
  for (int r = 0; r < size_; ++r) {
    std::int64_t gives = 0;
    std::int64_t gets = 0;
    for (std::size_t t = 0; t < tensors_; ++t) {
      gives += rows(rank_, r, t) * row_elements(description(r, t));
      gets += rows(r, rank_, t) * row_elements(description(r, t));
    }
    PartsRow row;
    PlaceInRow place;
    if (tensors_ > 0) {
      const std::int64_t* const told = description(r, 0) + kDescription;
      place = {told[kBegin], told[kBefore]};
      row = {told[kTotal],    told[kTotal],          told[kLongestToAnother], told[kReaders],
             told[kShortest], told[kShortestFilled], told[kLongest]};
    }
    parts->gives.push_back(gives);
    parts->gets.push_back(gets);
    parts->begins.push_back(place.begin);
    parts->before.push_back(place.before);
    parts->totals.push_back(row.total);
    if (r == 0) {
      parts->all = row;
    } else {
      parts->all.join(row);
    }
  }
  return parts;
}

const std::int64_t* LayoutExchange::description(int rank, std::size_t tensor) const {
  const std::size_t before = scatters() ? 0 : static_cast<std::size_t>(rank) * tensors_;
  return table_.data() + (before + tensor) * columns_;
}

std::int64_t LayoutExchange::rows(int from, int to, std::size_t tensor) const {
  const std::int64_t* row = description(from, tensor);
  switch (call_.collective) {
    case Collective::kScatter:
      return from == call_.root ? row[kDescription + to] : 0;
    case Collective::kAllToAll:
      return whole_ ? row[kDescription + to] : from == rank_ ? row_for(to, tensor)[kRows] : row[kDescription + kRows];
    default:
      return row[2];
  }
}

Disagreement LayoutExchange::contradicts(const Finding& found, int to) {
  const auto from = static_cast<int>(found.from);
  return {"all_to_all: " + rank_and(" gives ", from) + std::to_string(found.given) + " rows of tensor " +
              std::to_string(found.tensor) + " to " + rank_and(", which expects ", to) + std::to_string(found.expected),
          std::min(from, to), std::max(from, to)};
}

void LayoutExchange::check() const {
  if (scatters()) {
    return;
  }
  if (paired()) {
    // The first of all, as every rank finds it.
    const Finding* first = nullptr;
    int to = 0;
    std::vector<Finding> findings;
    for (std::size_t i = 0; i < found_.size(); i += kFinding) {
      findings.push_back({found_[i], found_[i + 1], found_[i + 2], found_[i + 3]});
    }
    for (std::size_t r = 0; r < findings.size(); ++r) {
      const Finding& found = findings[r];
      if (found.tensor >= 0 &&
          (first == nullptr || std::pair(found.tensor, found.from) < std::pair(first->tensor, first->from))) {
        first = &found;
        to = static_cast<int>(r);
      }
    }
    if (first != nullptr) {
      throw contradicts(*first, to);
    }
    return;
  }
  check_alike(table_, tensors_, columns_, name(call_.collective));
  if (call_.collective != Collective::kAllToAll) {
    return;
  }
  for (std::size_t t = 0; t < tensors_; ++t) {
    for (int from = 0; from < size_; ++from) {
      for (int to = 0; to < size_; ++to) {
        const std::int64_t expected = description(to, t)[kDescription + size_ + from];
        if (expected >= 0 && expected != rows(from, to, t)) {
          throw contradicts({static_cast<std::int64_t>(t), from, rows(from, to, t), expected}, to);
        }
      }
    }
  }
}

void check_alike(std::span<const std::int64_t> table, std::size_t tensors, std::size_t columns,
                 std::string_view collective) {
  const std::size_t ranks = tensors == 0 ? 0 : table.size() / (tensors * columns);
  for (std::size_t r = 1; r < ranks; ++r) {
    for (std::size_t t = 0; t < tensors; ++t) {
      const std::int64_t* mine = table.data() + t * columns;
      const std::int64_t* theirs = table.data() + (r * tensors + t) * columns;
      if (!std::equal(mine, mine + 2, theirs) || !std::equal(mine + 3, mine + kDescription, theirs + 3)) {
        throw Disagreement(std::string(collective) + ": tensor " + std::to_string(t) +
                               " differs by more than the length of its first axis: rank 0 has " + text(mine) + ", " +
                               rank_and(" has ", static_cast<int>(r)) + text(theirs),
                           0, static_cast<int>(r));
      }
    }
  }
}

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

LayoutTable as_table(py::handle array) {
  auto* const words = reinterpret_cast<PyArrayObject*>(array.ptr());
  if (PyArray_Check(array.ptr()) == 0 || dtype_of(words) != static_cast<int>(DType::kInt64) || !is_plain(words)) {
    throw ArgumentTypeError("a plain array of int64 is needed");
  }
  LayoutTable table(static_cast<std::size_t>(PyArray_SIZE(words)));
  std::memcpy(table.data(), PyArray_DATA(words), table.size() * sizeof table[0]);
  return table;
}

LayoutExchange::Own own_layouts(const py::list& arrays, py::handle rows, py::handle expected, bool is_list) {
  LayoutExchange::Own own;
  own.is_list = is_list;
  own.descriptions.resize(arrays.size() * kDescription);
  for (std::size_t t = 0; t < arrays.size(); ++t) {
    auto* const array = reinterpret_cast<PyArrayObject*>(py::handle(arrays[t]).ptr());
    const auto dimensions = static_cast<std::size_t>(PyArray_NDIM(array));
    if (dimensions > kMostDimensions) {
      throw ArgumentError("tensor " + std::to_string(t) + " has " + std::to_string(dimensions) +
                          " dimensions; at most " + std::to_string(kMostDimensions) + " are accepted here");
    }
    describe(static_cast<DType>(dtype_of(array)), {PyArray_DIMS(array), dimensions},
             own.descriptions.data() + t * kDescription);
  }
  for (auto [from, to] : {std::pair(rows, &own.rows), std::pair(expected, &own.expected)}) {
    for (const auto& row : from.is_none() ? std::vector<std::vector<std::int64_t>>()
                                          : from.cast<std::vector<std::vector<std::int64_t>>>()) {
      to->insert(to->end(), row.begin(), row.end());
    }
  }
  return own;
}

PyObject* run_exchange(PyObject* /*self*/, Communicator& communicator, PyObject* const* args, Py_ssize_t count) {
  enum : std::uint8_t { kCollective, kArrays, kRows, kExpected, kIsList, kKnown, kOptions, kArguments };
  check_count("_exchange_layouts", count, kArguments);
  Call call;
  call.collective = parse_collective(py::handle(args[kCollective]).cast<std::string>());
  read_options(options_of(args[kOptions]), &call);
  LayoutExchange exchange(call, communicator.rank(), communicator.size(),
                          own_layouts(py::reinterpret_borrow<py::list>(args[kArrays]), args[kRows], args[kExpected],
                                      args[kIsList] == Py_True),
                          true);
  if (args[kKnown] != Py_None && !exchange.know(as_table(args[kKnown]))) {
    give_up_changed(communicator, call.collective);
  }
  Call next;
  while (exchange.next(next)) {
    if (!run_to_end(communicator, next)) {
      return nullptr;
    }
  }
  try {
    exchange.check();
  } catch (const Disagreement& found) {
    throw as_error(found, communicator.rank(), name(call.collective));
  }
  const py::object table = as_array(exchange.table());
  return py::make_tuple(table, exchange.tensors(), exchange.is_list()).release().ptr();
}

CollectivesError as_error(const Disagreement& found, int rank, std::string_view collective) {
  ErrorContext context;
  context.rank = rank;
  context.peer = found.lower_rank == rank ? found.other_rank : found.lower_rank;
  context.collective = collective;
  return {ErrorKind::kMismatch, found.what(), context};
}

void give_up_changed(Communicator& communicator, Collective collective) {
  communicator.give_up(ErrorKind::kMismatch, "rank " + std::to_string(communicator.rank()) + ", " +
                                                 std::string(name(collective)) +
                                                 ": x was given another dtype or shape while the call waited for the "
                                                 "ranks to learn the first ones");
}

void bind_layouts(py::module_& m) {
  m.def(
      "_describe_arrays",
      [](const py::list& arrays) { return as_array(own_layouts(arrays, py::none(), py::none(), false).descriptions); },
      "Dtypes and shapes of plain arrays, as ranks exchange them: a row of equal length for each, one after the "
      "other.");
  m.def(
      "_check_alike",
      [](py::handle c, py::handle table, std::size_t tensors, const std::string& collective) {
        try {
          check_alike(as_table(table), tensors, kDescription, collective);
        } catch (const Disagreement& found) {
          throw as_error(found, communicator_of(c).rank(), collective);
        }
      },
      "Raises MismatchError unless the tensors of all ranks have the same dtypes and shapes, but for the first axis.");
}

}  // namespace collectives
