// The layouts (dtypes and shapes) that ranks exchange before a vector collective whose caller does not give the
// lengths. Some ranks of a call may come by the fast path for one plain array and others by the general one: both send
// what is described here.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/calls/plain_array.h"
#include "engine/communicator.h"

namespace collectives {

constexpr int kMostDimensions = 8;
// Of one tensor: dtype, number of dimensions, dimensions.
constexpr int kDescription = 2 + kMostDimensions;
using LayoutTable = std::vector<std::int64_t>;

void describe(DType dtype, std::span<const std::int64_t> shape, std::int64_t* row);

// What the ranks tell each other about the tensors of one vector collective, call by call:
//
//   all_gather, gather  every rank the descriptions of its tensors.
//   all_to_all          every rank each other one what concerns that one alone: the descriptions of its tensors, each
//                       followed by the rows that go to that rank and those that it expects of it, -1 where its caller
//                       has not said; once more all ranks what contradicts the latter, where anyone expects anything.
//                       So a rank learns its own column of the table of rows, see schedule/own_parts.h.
//   scatter             the root, by a broadcast, the number of tensors, whether they are a list, and the description
//                       of the first with the rows for each rank; by another one those of the other tensors.
class LayoutExchange {
 public:
  // What this rank knows, of all tensors that it gives. rows, expected: by tensor, then by rank; empty where there are
  // none.
  struct Own {
    LayoutTable descriptions;
    std::vector<std::int64_t> rows;
    std::vector<std::int64_t> expected;
    bool is_list = false;
  };
  // call: has collective and root, and what else the calls of the exchange have in common with it. whole: all_to_all
  // gathers the table of all rows, for arrays that the engine does not move itself.
  LayoutExchange(const Call& call, int rank, int size, const Own& own, bool whole = false);

  // Sets the next call of the exchange; false where all is known.
  bool next(Call& call);
  // What the first call of the exchange has brought, if that has been run already. False where this rank gives other
  // tensors now than it has said there.
  bool know(LayoutTable first);

  // When all is known. Throws Disagreement where ranks differ in more than they may.
  void check() const;
  std::size_t tensors() const { return tensors_; }
  bool is_list() const { return is_list_; }
  // Of a tensor of a rank; in scatter of the root.
  const std::int64_t* description(int rank, std::size_t tensor) const;
  // Rows of a tensor that go from one rank to another. In all_to_all this rank is one of the two.
  std::int64_t rows(int from, int to, std::size_t tensor) const;
  // all_to_all: the lengths for the engine.
  std::shared_ptr<const OwnParts> own_parts() const;
  const LayoutTable& table() const { return table_; }
  std::size_t columns() const { return columns_; }

 private:
  // What a rank found that contradicts another: `tensor` of which `from` gives it `given` rows and it expects another
  // number. tensor -1: nothing.
  struct Finding {
    std::int64_t tensor = -1;
    std::int64_t from = 0;
    std::int64_t given = 0;
    std::int64_t expected = 0;
  };
  bool scatters() const { return call_.collective == Collective::kScatter; }
  // all_to_all by pairs of ranks.
  bool paired() const { return call_.collective == Collective::kAllToAll && !whole_; }
  void tell_each(const Own& own);
  const std::int64_t* row_for(int rank, std::size_t tensor) const;
  bool anyone_expects() const;
  Finding contradiction() const;
  static Disagreement contradicts(const Finding& found, int to);
  void fill(Call& call, Collective collective, Span in, Span out) const;

  Call call_;
  int rank_;
  int size_;
  std::size_t columns_;
  std::size_t tensors_;
  bool is_list_;
  bool whole_;
  int calls_ = 0;      // that have been set, or known
  LayoutTable own_;    // the rows of this rank; in an all_to_all by pairs those for each rank
  LayoutTable head_;   // scatter: the first broadcast
  LayoutTable table_;  // a row for each tensor of each rank, in scatter of the root
  LayoutTable found_;  // all_to_all: the findings of all ranks
};

// Throws Disagreement unless all ranks have the same dtypes, and the same shapes but for the first dimension. table:
// `columns` words for each tensor of each rank, the description first.
void check_alike(std::span<const std::int64_t> table, std::size_t tensors, std::size_t columns,
                 std::string_view collective);

// Gathers the layouts of all ranks, a row for each, as LayoutExchange does. nullopt with the Python error set.
std::optional<LayoutTable> exchange_layouts(Communicator& communicator, const PlainArray& x);

// Whether all rows are equal.
bool all_equal(const LayoutTable& layouts);

// The first broadcast before a scatter. The root passes x, and the number of its rows that each rank gets; the other
// ranks pass nullptr. nullopt with the Python error set.
std::optional<LayoutTable> broadcast_layout(Communicator& communicator, int root, const PlainArray* x,
                                            std::int64_t rows);

// The number of rows for each rank, where the root scatters one array in equal parts; -1 where it does not. Sets the
// dtype and the shape of `x`; the shape points into `layout`.
std::int64_t rows_of(const LayoutTable& layout, PlainArray* x);

// The table as a NumPy array of one dimension, and back.
pybind11::object as_array(const LayoutTable& table);
LayoutTable as_table(pybind11::handle array);

// What one argument of a call gives: Python's lists of plain arrays, and of rows. ArgumentError where an array has too
// many dimensions.
LayoutExchange::Own own_layouts(const pybind11::list& arrays, pybind11::handle rows, pybind11::handle expected,
                                bool is_list);

// The error of this rank.
CollectivesError as_error(const Disagreement& found, int rank, std::string_view collective);

// Fails the communicator, on all ranks: the others rely on what a signal handler, or another thread, has changed since.
void give_up_changed(Communicator& communicator, Collective collective);

void bind_layouts(pybind11::module_& m);

// Communicator._exchange_layouts: the whole exchange, for arrays that the engine does not move itself.
PyObject* run_exchange(PyObject* self, Communicator& communicator, PyObject* const* args, Py_ssize_t count);

}  // namespace collectives
