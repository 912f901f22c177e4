// What the random program of engine_test.cc is made of: collectives, with and without parts, and messages. Values are
// small sums of what every rank knows, so each rank can tell by itself what it must get.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/topology.h"
#include "engine/work.h"
#include "schedule/algorithm.h"

namespace engine_test {

using namespace collectives;  // NOLINT

using Tensor = std::vector<std::int64_t>;

inline Span span_of(Tensor& tensor) {
  return {reinterpret_cast<std::byte*>(tensor.data()), static_cast<std::int64_t>(tensor.size() * sizeof(std::int64_t))};
}

// One call of the program; the same on every rank but for the values.
struct Item {
  Call call;
  std::vector<Tensor> input;
  std::vector<Tensor> output;          // empty: in place
  std::vector<std::int64_t> expected;  // of every element of each result; empty where this rank gets none
  std::vector<Span> heap;              // the input and the output, where they lie in symmetric memory
  std::shared_ptr<Work> work;

  void set_spans() {
    if (!heap.empty()) {
      call.input = {heap.front()};
      call.output = {heap.back()};
      return;
    }
    for (Tensor& tensor : input) {
      call.input.push_back(span_of(tensor));
    }
    for (Tensor& tensor : output) {
      call.output.push_back(span_of(tensor));
    }
  }

  // Before the call, when no other thread uses the slot any more.
  void fill_heap() const {
    if (!heap.empty()) {
      std::memcpy(heap[0].data, input[0].data(), heap[0].bytes);
    }
  }

  // What is wrong with the results, or empty.
  std::string fault() const {
    const std::vector<Tensor>& results = output.empty() ? input : output;
    for (std::size_t t = 0; t < expected.size(); ++t) {
      const auto* data = heap.empty() ? results[t].data() : reinterpret_cast<std::int64_t*>(heap.back().data);
      for (std::size_t i = 0; i < results[t].size(); ++i) {
        if (const std::int64_t value = data[i]; value != expected[t]) {
          return std::string(name(call.collective)) + " algorithm " + std::to_string(call.algorithm) + " tensor " +
                 std::to_string(t) + ": " + std::to_string(value) + " instead of " + std::to_string(expected[t]);
        }
      }
    }
    return {};
  }
};

class Maker {
 public:
  // heap: the symmetric memory of this rank, or nullptr. Calls on it use one slot after the other.
  Maker(std::uint64_t seed, const Topology& topology, std::byte* heap)
      : random_(seed), topology_(topology), rank_(topology.rank), size_(topology.size), heap_(heap) {}

  static constexpr int kHeapSlots = 21;

  int below(std::uint64_t n) { return static_cast<int>(random_() % n); }

  // The next call; nullptr where it is a message between two other ranks.
  std::unique_ptr<Item> next() {
    if (size_ > 1 && below(4) == 0) {
      return message();
    }
    const std::vector<Algorithm>& all = algorithms();
    const Algorithm& algorithm = all[below(all.size())];
    auto item = std::make_unique<Item>();
    item->call.collective = algorithm.collective;
    item->call.dtype = DType::kInt64;
    item->call.root = below(size_);
    const bool named = below(3) != 0;
    if (is_vector(algorithm.collective)) {
      fill_parts(*item);
    } else {
      fill_whole(*item);
      // Drawn on every rank, so that all have the same random numbers.
      if (below(3) == 0 && heap_ != nullptr && item->input.size() == 1 && !item->input[0].empty()) {
        move_to_heap(*item);
      }
    }
    Problem problem;
    problem.memory = item->heap.empty() ? MemoryKind::kPrivate : MemoryKind::kSymmetric;
    problem.collective = algorithm.collective;
    problem.dtype = DType::kInt64;
    problem.root = item->call.root;
    problem.counts = counts_of(item->call);
    if (named && algorithm.unsupported(problem, topology_).empty()) {
      item->call.algorithm = algorithm_id(algorithm);
    }
    item->set_spans();
    if (item->output.empty() && item->heap.empty() && !is_vector(algorithm.collective)) {
      item->call.output = item->call.input;
    }
    return item;
  }

 private:
  static constexpr int kBase = 1000;

  int length() { return below(8) == 0 ? below(3000) : below(40); }

  void fill_whole(Item& item) {
    const Collective kind = item.call.collective;
    const std::int64_t base = below(kBase);
    const bool apart = below(2) == 0;
    const int tensors = kind == Collective::kBarrier ? 0 : below(4) == 0 ? 1 + below(20) : 1;
    const auto sum_of_first = [&](std::int64_t ranks) { return base * ranks + ranks * (ranks - 1) / 2; };
    for (int t = 0; t < tensors; ++t) {
      const int elements = length();
      item.input.emplace_back(elements, base + rank_);
      if (apart) {
        item.output.emplace_back(elements, -1);
      }
      if (kind == Collective::kBroadcast) {
        item.expected.push_back(base + item.call.root);
      } else if (kind == Collective::kScan) {
        item.expected.push_back(sum_of_first(rank_ + 1));
      } else if (kind == Collective::kExscan) {
        if (rank_ > 0) {
          item.expected.push_back(sum_of_first(rank_));
        }
      } else if (kind == Collective::kAllReduce || rank_ == item.call.root) {
        item.expected.push_back(sum_of_first(size_));
      }
    }
  }

  void move_to_heap(Item& item) {
    const int slot = symmetric_++ % kHeapSlots;
    constexpr std::int64_t kHalf = (1 << 20) / kHeapSlots / 2 / 64 * 64;
    const Span from = span_of(item.input[0]);
    for (std::size_t i = 0; i <= item.output.size(); ++i) {
      item.heap.push_back({heap_ + (2 * slot + static_cast<int>(i)) * kHalf, from.bytes});
    }
  }

  // Parts of any lengths; of some ranks or tensors nothing.
  void fill_parts(Item& item) {
    const Collective kind = item.call.collective;
    const int root = item.call.root;
    const std::int64_t base = below(kBase);
    const int tensors = below(3) == 0 ? 2 + below(3) : 1;
    const bool even = below(3) == 0;
    const int common = length();
    // What a part holds on its way from one rank to another.
    const auto value = [&](int from, int to) { return base + 10 * from + to; };
    const auto give = [&](int elements, std::int64_t v) { item.input.emplace_back(elements, v); };
    const auto get = [&](int elements, std::int64_t v) {
      item.output.emplace_back(elements, -1);
      item.expected.push_back(v);
    };
    const bool matrix = kind == Collective::kAllToAll;
    for (int from = 0; from < (matrix ? size_ : 1); ++from) {
      for (int part = 0; part < size_; ++part) {
        for (int t = 0; t < tensors; ++t) {
          const int elements = even ? common : below(4) == 0 ? 0 : length();
          item.call.lengths.push_back(elements);
          if (matrix) {
            if (from == rank_) {
              give(elements, value(from, part));
            }
            if (part == rank_) {
              get(elements, value(from, part));
            }
          } else if (kind == Collective::kAllGather || kind == Collective::kGather) {
            if (part == rank_) {
              give(elements, value(part, 0));
            }
            if (kind == Collective::kAllGather || rank_ == root) {
              get(elements, value(part, 0));
            }
          } else if (kind == Collective::kScatter) {
            if (rank_ == root) {
              give(elements, value(root, part));
            }
            if (part == rank_) {
              get(elements, value(root, part));
            }
          } else {
            give(elements, value(rank_, part));
            if (part == rank_) {
              get(elements, size_ * value(0, part) + std::int64_t{10} * size_ * (size_ - 1) / 2);
            }
          }
        }
      }
    }
  }

  std::vector<std::int64_t> counts_of(const Call& call) const {
    if (!is_vector(call.collective)) {
      return {};
    }
    const std::size_t parts = call.collective == Collective::kAllToAll
                                  ? static_cast<std::size_t>(size_) * static_cast<std::size_t>(size_)
                                  : static_cast<std::size_t>(size_);
    std::vector<std::int64_t> counts(parts, 0);
    for (std::size_t i = 0; i < call.lengths.size(); ++i) {
      counts[i / (call.lengths.size() / parts)] += call.lengths[i];
    }
    return counts;
  }

  std::unique_ptr<Item> message() {
    const int source = below(size_);
    const int dest = (source + 1 + below(size_ - 1)) % size_;
    const int tag = below(3);
    const std::int64_t base = below(kBase);
    auto item = std::make_unique<Item>();
    item->call.collective = Collective::kMessage;
    item->call.dtype = DType::kInt64;
    item->call.message = {rank_ == source ? dest : source, tag, rank_ == source};
    const int tensors = below(3) == 0 ? below(5) : 1;
    for (int t = 0; t < tensors; ++t) {
      const int elements = below(8) == 0 ? below(40000) : length();
      if (rank_ == source) {
        item->input.emplace_back(elements, base + t);
      } else {
        item->output.emplace_back(elements, -1);
        item->expected.push_back(base + t);
      }
    }
    item->set_spans();
    return rank_ == source || rank_ == dest ? std::move(item) : nullptr;
  }

  std::mt19937_64 random_;
  Topology topology_;
  int rank_;
  int size_;
  std::byte* heap_;
  int symmetric_ = 0;
};

}  // namespace engine_test
