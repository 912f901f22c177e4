#include "replicas/replicas.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/float_environment.h"
#include "core/thread_pool.h"
#include "reduce/reducer.h"
#include "replicas/segments.h"

namespace collectives {
namespace {

// Data that is written and then read again (partial results, and results for several destinations) is worked on in
// blocks of this size, which stay in a near cache. 8 KiB were slower (docs/lab/replicas.md).
constexpr std::int64_t kBlockBytes = 32 << 10;

// The reduction of one tensor.
class Reduction {
 public:
  Reduction(const ReplicaTensor& tensor, Combination combination)
      : tensor_(tensor), element_(static_cast<std::int64_t>(size_of(tensor.dtype))), combination_(combination) {
    const Reducer& reducer = best_reducer();
    partial_ = reducer.kernel(tensor.dtype, tensor.op, false);
    final_ = reducer.kernel(tensor.dtype, tensor.op, true);
    if (final_ == nullptr) {
      throw ArgumentTypeError(std::string(name(tensor.op)) + " of " + std::string(name(tensor.dtype)) +
                              " has no meaning");
    }
  }

  // Reduces elements [begin, begin + count). kChain starts at replica `first`.
  void run(std::int64_t begin, std::int64_t count, int first) const {
    // No allocation for few replicas.
    std::array<const void*, kFew> few;
    std::vector<const void*> many;
    const int n = static_cast<int>(tensor_.sources.size());
    const void** sources = few.data();
    if (n + 1 > kFew) {
      many.resize(n + 1);
      sources = many.data();
    }
    std::array<void*, kFew> few_destinations;
    std::vector<void*> many_destinations;
    const int m = static_cast<int>(tensor_.destinations.size());
    void** destinations = few_destinations.data();
    if (m > kFew) {
      many_destinations.resize(m);
      destinations = many_destinations.data();
    }
    // A kernel writes one or two destinations as fast as memcpy would; for more, memcpy is faster
    // (docs/lab/replicas.md).
    const int direct = m <= 2 ? m : 1;
    const bool partials = n > 2 && combination_ != Combination::kCanonical;
    const std::int64_t step = partials || direct < m ? kBlockBytes / element_ : count;
    for (std::int64_t i = begin, end = begin + count; i < end; i += step) {
      for (int d = 0; d < m; ++d) {
        destinations[d] = static_cast<std::byte*>(tensor_.destinations[d]) + i * element_;
      }
      const std::int64_t size = std::min(step, end - i);
      block(destinations, direct, sources, n, i, size, first);
      for (int d = direct; d < m; ++d) {
        std::memcpy(destinations[d], destinations[0], static_cast<std::size_t>(size * element_));
      }
    }
  }

 private:
  static constexpr int kFew = 16;

  const void* source(int replica, std::int64_t i) const {
    return static_cast<const std::byte*>(tensor_.sources[replica]) + i * element_;
  }

  void block(void** destinations, int m, const void** sources, int n, std::int64_t i, std::int64_t count,
             int first) const {
    switch (combination_) {
      case Combination::kCanonical:
        for (int r = 0; r < n; ++r) {
          sources[r] = source(r, i);
        }
        return finish(destinations, m, sources, n, count);
      case Combination::kHalves:
        return halves(destinations, m, sources, n, i, count);
      case Combination::kChain:
        return chain(destinations, m, sources, n, i, count, first);
    }
  }

  // The result of the second half is the first operand, as in the algorithm "hierarchical_copy", where the main replica
  // of the first half receives it.
  void halves(void** destinations, int m, const void** sources, int n, std::int64_t i, std::int64_t count) const {
    const int half = (n + 1) / 2;
    if (n == 1) {
      sources[0] = source(0, i);
      return finish(destinations, m, sources, 1, count);
    }
    if (n == 2 || (n % 2 == 0 && exact_partials())) {  // the canonical tree splits in the middle, too
      for (int r = 0; r < n; ++r) {
        sources[r] = source((r + half) % n, i);
      }
      return finish(destinations, m, sources, n, count);
    }
    alignas(64) std::byte second[kBlockBytes];
    void* const to_second = second;
    for (int r = half; r < n; ++r) {
      sources[r - half] = source(r, i);
    }
    partial_(&to_second, 1, sources, n - half, static_cast<std::size_t>(count), 1);
    for (int r = 0; r < half; ++r) {
      sources[r] = source(r, i);
    }
    partial_(destinations, 1, sources, half, static_cast<std::size_t>(count), 1);
    sources[0] = second;
    sources[1] = destinations[0];
    finish(destinations, m, sources, 2, count);
  }

  void chain(void** destinations, int m, const void** sources, int n, std::int64_t i, std::int64_t count,
             int first) const {
    // A kernel's tree over three operands is a chain, unless it keeps the inner result wider than an element.
    const int longest = exact_partials() ? 3 : 2;
    // Not in the destination, which may be a source that is still to be read.
    alignas(64) std::byte sum[kBlockBytes];
    void* const to_sum = sum;
    sources[0] = source(first, i);
    for (int done = 1;;) {
      int length = 1;
      for (; length < longest && done < n; ++length, ++done) {
        sources[length] = source((first + done) % n, i);
      }
      if (done == n) {
        return finish(destinations, m, sources, length, count);
      }
      partial_(&to_sum, 1, sources, length, static_cast<std::size_t>(count), 1);
      sources[0] = sum;
    }
  }

  void finish(void** destinations, int m, const void** sources, int n, std::int64_t count) const {
    final_(destinations, m, sources, n, static_cast<std::size_t>(count), static_cast<double>(tensor_.sources.size()));
  }

  // Whether storing a partial result leaves its bits as they are. For floats below 32 bits it does not: kernels keep
  // partial results wider.
  bool exact_partials() const { return !is_floating(tensor_.dtype) || element_ >= 4; }

  const ReplicaTensor& tensor_;
  std::int64_t element_;
  Combination combination_;
  ReduceFunction partial_;
  ReduceFunction final_;
};

std::atomic<std::int64_t> g_bytes{0};

}  // namespace

std::int64_t replica_bytes() { return g_bytes.load(std::memory_order_relaxed); }

Combination parse_combination(std::string_view text) {
  if (text == "canonical") {
    return Combination::kCanonical;
  }
  if (text == "halves") {
    return Combination::kHalves;
  }
  if (text == "chain") {
    return Combination::kChain;
  }
  throw ArgumentError("unknown combination '" + std::string(text) + "': accepted are canonical, halves, chain");
}

void reduce_replicas(Combination combination, int packs, std::span<const ReplicaTensor> tensors) {
  const std::vector<Segment> segments = cut(combination, packs, tensors);
  std::vector<Reduction> reductions;
  std::vector<std::int64_t> ends;
  reductions.reserve(segments.size());
  ends.reserve(segments.size());
  std::int64_t total = 0;
  std::int64_t read = 0;
  for (const Segment& segment : segments) {
    read += segment.count * static_cast<std::int64_t>(size_of(segment.tensor->dtype) * segment.tensor->sources.size());
    reductions.emplace_back(*segment.tensor, combination);
    ends.push_back(total += segment.cost);
  }
  g_bytes.fetch_add(read, std::memory_order_relaxed);
  const FloatEnvironment own;  // of this thread; those of the pool have the same settings
  parallel_for(total, [&](std::int64_t slice, std::int64_t slices) {
    // The segments lie one behind the other on an axis of costs, of which this thread gets [low, high).
    const std::int64_t low = total / slices * slice;
    const std::int64_t high = slice == slices - 1 ? total : total / slices * (slice + 1);
    auto at = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), low) - ends.begin());
    for (; at < segments.size() && ends[at] - segments[at].cost < high; ++at) {
      const Segment& segment = segments[at];
      const std::int64_t start = ends[at] - segment.cost;
      const std::int64_t per_element = segment.cost / segment.count;
      const auto border = [&](std::int64_t cost) {
        return cost >= segment.cost ? segment.count : std::max<std::int64_t>(cost, 0) / per_element / kGrain * kGrain;
      };
      const std::int64_t from = border(low - start);
      const std::int64_t to = border(high - start);
      if (to > from) {
        reductions[at].run(segment.begin + from, to - from, segment.first);
      }
    }
  });
}

}  // namespace collectives
