#include "device/replicas.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "core/error.h"
#include "device/collective.h"
#include "reduce/reducer.h"
#include "replicas/segments.h"

namespace collectives {
namespace {

void check(std::span<const DeviceTensor> tensors, std::span<const DeviceStream> replicas) {
  if (replicas.empty() || replicas.size() > kMostDeviceOperands) {
    throw ArgumentError(std::to_string(replicas.size()) + " replicas on devices; 1 to " +
                        std::to_string(kMostDeviceOperands) + " are possible");
  }
  for (const DeviceTensor& tensor : tensors) {
    if (tensor.arrays.sources.size() != replicas.size()) {
      throw ArgumentError(std::to_string(tensor.arrays.sources.size()) + " arrays for " +
                          std::to_string(replicas.size()) + " replicas; one per replica is needed");
    }
    if (!has_kernel(tensor.arrays.op, tensor.arrays.dtype) || tensor.arrays.op == Op::kPremulSum) {
      throw ArgumentTypeError(std::string(name(tensor.arrays.op)) + " of " + std::string(name(tensor.arrays.dtype)) +
                              " has no meaning");
    }
  }
}

std::byte* at(const void* array, const Segment& segment) {
  return static_cast<std::byte*>(const_cast<void*>(array)) +
         segment.begin * static_cast<std::int64_t>(size_of(segment.tensor->dtype));
}

// One kernel. Destinations beyond kMostDeviceOperands are copied from the first.
void launch(Combination combination, const Segment& segment, void* stream) {
  const ReplicaTensor& tensor = *segment.tensor;
  DeviceReduction r;
  r.dtype = tensor.dtype;
  r.op = tensor.op;
  r.combination = combination;
  r.finish = true;
  r.first = segment.first;
  r.source_count = static_cast<int>(tensor.sources.size());
  const std::size_t direct = std::min<std::size_t>(tensor.destinations.size(), kMostDeviceOperands);
  r.destination_count = static_cast<int>(direct);
  for (std::size_t i = 0; i < tensor.sources.size(); ++i) {
    r.sources[i] = at(tensor.sources[i], segment);
  }
  for (std::size_t d = 0; d < direct; ++d) {
    r.destinations[d] = at(tensor.destinations[d], segment);
  }
  r.count = segment.count;
  r.operand = static_cast<double>(tensor.sources.size());
  check_device(device_api().reduce(&r, stream), "starting a reduction on a device");
  for (std::size_t d = direct; d < tensor.destinations.size(); ++d) {
    check_device(device_api().copy(at(tensor.destinations[d], segment), r.destinations[0],
                                   segment.count * static_cast<std::int64_t>(size_of(tensor.dtype)), stream),
                 "copying between arrays on a device");
  }
}

// Puts all work into the stream of the first replica: behind what the other streams hold now, and ahead of what they
// get later.
void reduce_on_one(Combination combination, int packs, std::span<const DeviceTensor> tensors,
                   std::span<const DeviceStream> replicas) {
  CurrentDevice current;
  std::vector<DeviceStream> streams;
  for (const DeviceStream& stream : replicas) {
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
      streams.push_back(stream);
    }
  }
  const DeviceStream& main = streams[0];
  current.use(main.device);
  Events events;
  if (streams.size() > 1) {
    capturing(current, streams);
  }
  for (std::size_t i = 1; i < streams.size(); ++i) {
    wait_for(current, main, record_event(events, current, streams[i]));
  }
  std::vector<ReplicaTensor> arrays;
  arrays.reserve(tensors.size());
  for (const DeviceTensor& tensor : tensors) {
    if (!tensor.arrays.destinations.empty()) {
      arrays.push_back(tensor.arrays);
    }
  }
  const auto after = [&] {
    if (streams.size() > 1) {
      void* const done = record_event(events, current, main);
      for (std::size_t i = 1; i < streams.size(); ++i) {
        wait_for(current, streams[i], done);
      }
    }
  };
  try {
    for (const Segment& segment : cut(combination, packs, arrays)) {
      launch(combination, segment, main.stream);
    }
  } catch (const CollectivesError&) {
    // Work that is in the stream already still uses the arrays, and callers may release them in stream order.
    try {
      after();
    } catch (const CollectivesError&) {  // NOLINT(bugprone-empty-catch): the first error says more
    }
    throw;
  }
  after();
}

// Reduces the tensors of one dtype and op, one behind the other, as one buffer of each replica.
void reduce_group(const std::string& algorithm, int packs, const std::vector<const DeviceTensor*>& tensors,
                  std::span<const DeviceStream> replicas) {
  const ReplicaTensor& first = tensors[0]->arrays;
  const auto element = static_cast<std::int64_t>(size_of(first.dtype));
  const auto n = static_cast<int>(replicas.size());
  std::int64_t total = 0;
  for (const DeviceTensor* tensor : tensors) {
    total += tensor->arrays.count;
  }
  const std::int64_t share = total / packs;
  for (int pack = share == 0 ? packs - 1 : 0; pack < packs; ++pack) {
    const std::int64_t low = share * pack;
    const std::int64_t high = pack == packs - 1 ? total : low + share;
    std::vector<DeviceRank> ranks(replicas.size());
    std::vector<DeviceCopy> copies;
    std::int64_t position = 0;
    for (int r = 0; r < n; ++r) {
      ranks[r].stream = replicas[r];
    }
    for (const DeviceTensor* tensor : tensors) {
      const std::int64_t begin = std::max(low - position, std::int64_t{0});
      const std::int64_t end = std::min(high - position, tensor->arrays.count);
      position += tensor->arrays.count;
      if (begin >= end) {
        continue;
      }
      const auto span = [&](const void* array) {
        return Span{static_cast<std::byte*>(const_cast<void*>(array)) + begin * element, (end - begin) * element};
      };
      std::vector<bool> given(replicas.size(), false);
      for (int r = 0; r < n; ++r) {
        ranks[r].input.push_back(span(tensor->arrays.sources[r]));
        ranks[r].output.push_back({nullptr, (end - begin) * element});  // memory for the length of the call
      }
      for (std::size_t d = 0; d < tensor->owners.size(); ++d) {
        const auto owner = static_cast<std::size_t>(tensor->owners[d]);
        const Span to = span(tensor->arrays.destinations[d]);
        Span& output = ranks[owner].output.back();
        if (given[owner]) {
          copies.push_back({static_cast<int>(owner), output.data, to.data, to.bytes});
        } else {
          output = to;
          given[owner] = true;
        }
      }
    }
    Problem problem;
    problem.collective = Collective::kAllReduce;
    problem.op = first.op;
    problem.dtype = first.dtype;
    problem.count = high - low;
    run_device_collective(problem, algorithm, ranks, copies);
  }
}

}  // namespace

void reduce_device_replicas(Combination combination, int packs, const std::string& algorithm,
                            std::span<const DeviceTensor> tensors, std::span<const DeviceStream> replicas) {
  check(tensors, replicas);
  const bool one = std::all_of(replicas.begin(), replicas.end(),
                               [&](const DeviceStream& stream) { return stream.device == replicas[0].device; });
  if (one) {
    reduce_on_one(combination, packs, tensors, replicas);
    return;
  }
  // Only with kChain do packs change the result; otherwise one is fastest.
  const int cuts = combination == Combination::kChain ? packs : 1;
  std::map<std::pair<DType, Op>, std::vector<const DeviceTensor*>> groups;
  for (const DeviceTensor& tensor : tensors) {
    if (tensor.arrays.count > 0 && !tensor.owners.empty()) {
      groups[{tensor.arrays.dtype, tensor.arrays.op}].push_back(&tensor);
    }
  }
  for (const auto& [key, group] : groups) {
    reduce_group(algorithm, cuts, group, replicas);
  }
}

}  // namespace collectives
