#include "bindings/calls/negotiated.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "bindings/arrays/arrays.h"
#include "memory/pages.h"

namespace collectives {
namespace {

namespace py = pybind11;

constexpr std::size_t kAlignment = 64;  // as new_array() in vector_calls.cc
constexpr std::size_t kLarge = 4 << 20;

// As NumPy does it for its own arrays: from kLarge bytes on the kernel may give large pages.
std::shared_ptr<std::byte> new_memory(std::size_t bytes) {
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  if (bytes >= kLarge) {
    std::byte* const begin = memory + (-reinterpret_cast<std::uintptr_t>(memory) % page_bytes());
    madvise(begin, rounded - static_cast<std::size_t>(begin - memory), MADV_HUGEPAGE);
  }
  return {memory, [](std::byte* m) { std::free(m); }};
}

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t n : shape) {
    elements *= n;
  }
  return elements;
}

}  // namespace

Negotiated::Negotiated(const Call& call, int rank, int size, const LayoutExchange::Own& own, std::vector<Span> inputs,
                       std::optional<Outputs> outputs)
    : call_(call),
      rank_(rank),
      size_(size),
      exchange_(call, rank, size, own),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)) {}

std::int64_t Negotiated::row_elements(std::size_t tensor) const {
  const std::int64_t* row = exchange_.description(0, tensor);
  return product({row + 3, row + std::max<std::int64_t>(2 + row[1], 3)});
}

void Negotiated::find_shapes() {
  outcome_->is_list = exchange_.is_list();
  if (exchange_.tensors() > 0) {
    outcome_->dtype = static_cast<DType>(exchange_.description(0, 0)[0]);
  }
  for (int from = 0; gets() && exchange_.tensors() > 0 && from < size_; ++from) {
    outcome_->came.push_back(exchange_.rows(from, rank_, 0));
  }
  for (std::size_t t = 0; gets() && t < exchange_.tensors(); ++t) {
    const std::int64_t* row = exchange_.description(0, t);
    std::vector<std::int64_t>& shape = outcome_->shapes.emplace_back(row + 2, row + 2 + row[1]);
    shape[0] = 0;
    for (int from = 0; from < size_; ++from) {
      shape[0] += exchange_.rows(from, rank_, t);
    }
  }
}

// The descriptions of outputs that fit.
LayoutTable Negotiated::needed_outputs() const {
  std::vector<std::vector<std::int64_t>> shapes = outcome_->shapes;
  if (outputs_->per_rank && shapes.size() == 1) {
    shapes.assign(static_cast<std::size_t>(size_), shapes[0]);
    for (std::size_t r = 0; r < shapes.size(); ++r) {
      shapes[r][0] = outcome_->came[r];
    }
  }
  LayoutTable needed(shapes.size() * kDescription);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    describe(outcome_->dtype, shapes[i], needed.data() + i * kDescription);
  }
  return needed;
}

std::vector<std::byte*> Negotiated::find_outputs() {
  if (outputs_ && needed_outputs() == outputs_->descriptions) {
    return outputs_->data;
  }
  std::vector<std::byte*> data;
  for (const std::vector<std::int64_t>& shape : outcome_->shapes) {
    outcome_->memory.push_back(
        new_memory(static_cast<std::size_t>(product(shape)) * static_cast<std::size_t>(size_of(outcome_->dtype))));
    data.push_back(outcome_->memory.back().get());
  }
  return data;
}

template <typename Rows>
std::vector<Span> Negotiated::pieces(const std::vector<std::byte*>& data, const Rows& rows) const {
  const auto element = static_cast<std::int64_t>(size_of(outcome_->dtype));
  std::vector<std::byte*> at = data;
  std::vector<Span> spans;
  for (int r = 0; r < size_; ++r) {
    for (std::size_t t = 0; t < at.size(); ++t) {
      const std::int64_t bytes = rows(r, t) * row_elements(t) * element;
      if (at.size() == 1 && !spans.empty()) {
        spans[0].bytes += bytes;
      } else {
        spans.push_back({at[t], bytes});
      }
      at[t] += bytes;
    }
  }
  return spans;
}

bool Negotiated::next(Call& call) {
  if (exchange_.next(call)) {
    return true;
  }
  exchange_.check();
  find_shapes();
  call = call_;
  call.dtype = outcome_->dtype;
  const std::size_t tensors = exchange_.tensors();
  const std::vector<std::byte*> outputs = gets() ? find_outputs() : std::vector<std::byte*>();
  const bool splits = call.collective == Collective::kScatter || call.collective == Collective::kAllToAll;
  const bool per_rank_in = tensors == 1 && inputs_.size() > 1;
  const bool per_rank_out = outputs_ && outputs_->per_rank && outcome_->memory.empty();
  if (gives() && splits && !per_rank_in) {
    std::vector<std::byte*> data;
    for (const Span& input : inputs_) {
      data.push_back(input.data);
    }
    call.input = pieces(data, [&](int to, std::size_t t) { return exchange_.rows(rank_, to, t); });
  } else if (gives()) {
    call.input = inputs_;
  }
  if (gets() && per_rank_out) {
    for (std::size_t r = 0; r < outputs.size(); ++r) {
      call.output.push_back(
          {outputs[r], outcome_->came[r] * row_elements(0) * static_cast<std::int64_t>(size_of(call.dtype))});
    }
  } else if (gets() && call.collective != Collective::kScatter) {
    call.output = pieces(outputs, [&](int from, std::size_t t) { return exchange_.rows(from, rank_, t); });
  } else if (gets()) {
    for (std::size_t t = 0; t < tensors; ++t) {
      call.output.push_back(
          {outputs[t], product(outcome_->shapes[t]) * static_cast<std::int64_t>(size_of(call.dtype))});
    }
  }
  const auto add_lengths = [&](int from, int to) {
    for (std::size_t t = 0; t < tensors; ++t) {
      call.lengths.push_back(exchange_.rows(from, to, t) * row_elements(t));
    }
  };
  if (call.collective == Collective::kAllToAll) {
    call.own = exchange_.own_parts();
    return false;
  }
  for (int a = 0; a < size_; ++a) {
    if (call.collective == Collective::kScatter) {
      add_lengths(call.root, a);
    } else {
      add_lengths(a, rank_);
    }
  }
  return false;
}

py::list arrays_of(const Outcome& outcome) {
  py::list arrays;
  for (std::size_t t = 0; t < outcome.memory.size(); ++t) {
    auto owner = std::make_unique<std::shared_ptr<std::byte>>(outcome.memory[t]);
    const py::capsule capsule(owner.get(),
                              [](void* memory) { delete static_cast<std::shared_ptr<std::byte>*>(memory); });
    [[maybe_unused]] auto* const owned = owner.release();  // by the capsule
    const std::vector<std::int64_t>& shape = outcome.shapes[t];
    auto array = py::reinterpret_steal<py::object>(
        PyArray_NewFromDescr(&PyArray_Type, new_descriptor(outcome.dtype), static_cast<int>(shape.size()), shape.data(),
                             nullptr, outcome.memory[t].get(), NPY_ARRAY_CARRAY, nullptr));
    if (!array || PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array.ptr()), capsule.inc_ref().ptr()) != 0) {
      throw py::error_already_set();
    }
    arrays.append(array);
  }
  return arrays;
}

}  // namespace collectives
