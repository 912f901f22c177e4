// What a reduction computes, with the kernels of the engine.
#include <cstring>
#include <vector>

#include "fake.h"
#include "reduce/reducer.h"

namespace fake {

using collectives::Combination;
using collectives::DeviceReduction;
using collectives::Op;

void compute(const DeviceReduction& r) {
  const auto bytes = static_cast<std::size_t>(r.count) * size_of(r.dtype);
  const auto count = static_cast<std::size_t>(r.count);
  const collectives::Reducer& reducer = collectives::best_reducer();
  const int n = r.source_count;
  std::vector<std::byte> first(bytes);
  std::vector<std::byte> second(bytes);
  const auto reduce = [&](std::vector<const void*> sources, void* to, bool finish) {
    reducer.kernel(r.dtype, r.op, finish)(&to, 1, sources.data(), static_cast<int>(sources.size()), count, r.operand);
  };
  const std::vector<const void*> all(r.sources, r.sources + n);
  if (r.op == Op::kPremulSum && n == 1) {
    reducer.scale(r.dtype)(first.data(), all[0], count, r.operand);
  } else if (n == 1 || r.combination == Combination::kCanonical) {
    reduce(all, first.data(), r.finish);
  } else if (r.combination == Combination::kHalves) {
    const int half = (n + 1) / 2;
    if (n == 2) {
      reduce({all[1], all[0]}, first.data(), r.finish);
    } else {
      reduce({all.begin() + half, all.end()}, second.data(), false);
      reduce({all.begin(), all.begin() + half}, first.data(), false);
      reduce({second.data(), first.data()}, first.data(), r.finish);
    }
  } else {
    std::memcpy(first.data(), all[static_cast<std::size_t>(r.first)], bytes);
    for (int i = 1; i < n; ++i) {
      reduce({first.data(), all[static_cast<std::size_t>((r.first + i) % n)]}, first.data(), r.finish && i == n - 1);
    }
  }
  for (int d = 0; d < r.destination_count; ++d) {
    std::memcpy(r.destinations[d], first.data(), bytes);
  }
}

}  // namespace fake
