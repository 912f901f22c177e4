// A vector collective for which the ranks tell each other first what they give, as one asynchronous call: nothing waits
// between the exchange of layouts (layouts.h) and the collective itself.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bindings/calls/layouts.h"
#include "engine/communicator.h"

namespace collectives {

// What a rank gets. Written when all layouts are known, before the collective begins.
struct Outcome {
  DType dtype = DType::kUInt8;
  std::vector<std::vector<std::int64_t>> shapes;   // of each tensor; none where the rank gets nothing
  std::vector<std::shared_ptr<std::byte>> memory;  // of each, where the caller's arrays are not used
  std::vector<std::int64_t> came;                  // from each rank, rows of the first tensor
  bool is_list = false;                            // what the root of a scatter has given
};

class Negotiated : public Continuation {
 public:
  // Arrays of the caller, each described in a row of kDescription words.
  struct Outputs {
    LayoutTable descriptions;
    std::vector<std::byte*> data;
    bool per_rank = false;  // they are the parts of one tensor
  };
  // call: all but spans and lengths. inputs: those that `own` describes, or, where that describes only the first and
  // there is one for each rank, the parts of one tensor. outputs: where the caller gives some; they are used where they
  // fit, else memory is made, so that the other ranks do not wait in vain.
  Negotiated(const Call& call, int rank, int size, const LayoutExchange::Own& own, std::vector<Span> inputs,
             std::optional<Outputs> outputs);

  bool know(LayoutTable first) { return exchange_.know(std::move(first)); }
  bool next(Call& call) override;
  const std::shared_ptr<Outcome>& outcome() const { return outcome_; }

 private:
  bool gives() const { return call_.collective != Collective::kScatter || rank_ == call_.root; }
  bool gets() const { return call_.collective != Collective::kGather || rank_ == call_.root; }
  void find_shapes();
  LayoutTable needed_outputs() const;
  std::vector<std::byte*> find_outputs();
  // The parts of tensors at `data`, each of rows(rank, tensor) rows, by rank and then by tensor. One tensor is not cut.
  template <typename Rows>
  std::vector<Span> pieces(const std::vector<std::byte*>& data, const Rows& rows) const;
  std::int64_t row_elements(std::size_t tensor) const;

  Call call_;
  int rank_;
  int size_;
  LayoutExchange exchange_;
  std::vector<Span> inputs_;
  std::optional<Outputs> outputs_;
  std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
};

// The tensors of an outcome whose memory was made, as NumPy arrays that keep it.
pybind11::list arrays_of(const Outcome& outcome);

}  // namespace collectives
