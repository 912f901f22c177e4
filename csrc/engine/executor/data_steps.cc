#include "engine/executor/data_steps.h"

#include <algorithm>
#include <cstring>

#include "cpu/cache_lines.h"
#include "cpu/streaming.h"

namespace collectives {
namespace {

// Between these lengths memcpy begins a string instruction, which costs 10 ns on Zen 4 and pays only beyond.
constexpr std::int64_t kLeastByLoop = 2 << 10;
constexpr std::int64_t kMostByLoop = 4 << 10;
// Between these lengths bounce buffers are filled by a string instruction, where the processor gains by it: for less a
// loop is faster, and for more memcpy uses such an instruction by itself.
constexpr std::int64_t kLeastByString = 1 << 10;
constexpr std::int64_t kMostByString = 4 << 10;

// Memory that the caller gave, which may consist of several spans.
bool of_caller(Region region) { return region == Region::kInput || region == Region::kOutput; }

// Whether what is copied into the output is written past the caches.
inline bool streams(Work& work) {
  const Plan& plan = *work.plan;
  return plan.streams && (plan.streams_in_place || work.base_of(Region::kInput) != work.base_of(Region::kOutput));
}

// to: where the destination is. own: the lines of the source become this core's own (cpu/cache_lines.h).
void copy_bytes(Work& work, Region to, std::byte* destination, std::byte* source, std::int64_t bytes, bool own) {
  const Plan& plan = *work.plan;
  if (destination == source) {
    return;  // a call in place
  }
  if (to == Region::kOutput && streams(work)) {
    copy_streaming(destination, source, bytes, own);
  } else if (own) {
    copy_and_own(destination, source, bytes);
  } else if (plan.by_string && to == Region::kBounce && bytes >= kLeastByString && bytes <= kMostByString) {
    copy_by_string(destination, source, bytes);
  } else if (bytes >= kLeastByLoop && bytes <= kMostByLoop) {
    void* const first = destination;
    const void* const only = source;
    plan.copy(&first, 1, &only, 1, static_cast<std::size_t>(bytes), 1);
  } else {
    std::memcpy(destination, source, bytes);
  }
}

// To more than one place, or in another way than short copies.
[[gnu::noinline]] void copy_to_all(Work& work, const Step& step, std::byte* source, bool own) {
  const OperandPlace* to = work.places.operands + step.destinations.begin;
  for (const OperandPlace* const end = to + step.destinations.count; to != end; ++to) {
    copy_bytes(work, to->region, to->address(work.bases, work.iteration), source, step.length, own);
  }
}

// Combines `bytes` bytes of what work.sources and work.destinations point to.
inline void reduce_bytes(Work& work, const Step& step, std::int64_t bytes) {
  const Plan& plan = *work.plan;
  const ReduceFunction reduce = step.finish ? plan.reduce_finish : plan.reduce;
  reduce(work.destinations.data(), static_cast<int>(step.destinations.count), work.sources.data(),
         static_cast<int>(step.sources.count), bytes >> plan.element_shift, work.divisor);
  if (plan.owns_reduced) {
    for (std::uint32_t i = 0; i < step.sources.count; ++i) {
      if (work.places.operands[step.sources.begin + i].own) {
        own_read_lines(static_cast<std::byte*>(work.sources[i]), bytes);
      }
    }
  }
}

}  // namespace

void DataSteps::copy(Work& work, const Step& step) {
  if (step.length == 0) {
    return;  // arrays of no elements may have no address
  }
  const OperandPlace& from = work.places.operands[step.sources.begin];
  std::byte* const source = from.address(work.bases, work.iteration);
  const bool own = from.own && work.plan->owns_copied;
  const std::int64_t special = work.plan->by_string ? kLeastByString : kLeastByLoop;  // not by memcpy from here on
  if (step.destinations.count > 1 || step.length >= special || own) {
    copy_to_all(work, step, source, own);
    return;
  }
  // The path of a short call. The rest is a function of its own, so that this one saves no registers.
  std::byte* const destination = work.places.operands[step.destinations.begin].address(work.bases, work.iteration);
  if (destination != source) {  // they are equal in a call in place
    std::memcpy(destination, source, static_cast<std::size_t>(step.length));
  }
}

void DataSteps::locate(Work& work, const Step& step) {
  const auto all = [&](Range operands, void** addresses) {
    const OperandPlace* place = work.places.operands + operands.begin;
    for (const OperandPlace* const end = place + operands.count; place != end; ++place) {
      *addresses++ = place->address(work.bases, work.iteration);
    }
  };
  all(step.sources, work.sources.data());
  all(step.destinations, work.destinations.data());
}

void DataSteps::reduce(Work& work, const Step& step) {
  std::int64_t left = step.length;
  // Ownership is cheap to acquire only while the lines are in the nearest cache, so a long step goes block by block.
  for (; work.plan->owns_reduced && left > kOwnBlock; left -= kOwnBlock) {
    reduce_bytes(work, step, kOwnBlock);
    for (std::uint32_t i = 0; i < step.sources.count; ++i) {
      work.sources[i] = static_cast<std::byte*>(work.sources[i]) + kOwnBlock;
    }
    for (std::uint32_t i = 0; i < step.destinations.count; ++i) {
      work.destinations[i] = static_cast<std::byte*>(work.destinations[i]) + kOwnBlock;
    }
  }
  reduce_bytes(work, step, left);
}

void DataSteps::move_spans(Work& work, const Step& step) {
  const std::uint32_t behind = step.sources.count;
  const std::uint32_t operands = behind + step.destinations.count;
  const auto place = [&](std::uint32_t i) -> const OperandPlace& {
    return work.places.operands[i < behind ? step.sources.begin + i : step.destinations.begin + i - behind];
  };
  for (std::uint32_t i = 0; i < operands; ++i) {
    if (of_caller(place(i).region)) {
      work.cursors[i] = cursor(work, place(i), step.length);
    }
  }
  for (std::int64_t done = 0; done < step.length;) {
    std::int64_t bytes = step.length - done;
    for (std::uint32_t i = 0; i < operands; ++i) {
      if (of_caller(place(i).region)) {
        bytes = work.cursors[i].piece(bytes).bytes;
      }
    }
    for (std::uint32_t i = 0; i < operands; ++i) {
      std::byte* const begin = of_caller(place(i).region) ? work.cursors[i].piece(bytes).data
                                                          : place(i).address(work.bases, work.iteration) + done;
      (i < behind ? work.sources[i] : work.destinations[i - behind]) = begin;
    }
    if (step.kind == StepKind::kReduce) {
      reduce_bytes(work, step, bytes);
    } else {
      for (std::uint32_t i = 0; i < step.destinations.count; ++i) {
        copy_bytes(work, place(behind + i).region, static_cast<std::byte*>(work.destinations[i]),
                   static_cast<std::byte*>(work.sources[0]), bytes, place(0).own && work.plan->owns_copied);
      }
    }
    done += bytes;
    for (std::uint32_t i = 0; i < operands; ++i) {
      if (of_caller(place(i).region)) {
        work.cursors[i].advance(bytes);
      }
    }
  }
}

SpanCursor DataSteps::cursor(Work& work, const OperandPlace& place, std::int64_t bytes) {
  if (of_caller(place.region)) {
    SpanCursor result(place.region == Region::kInput ? work.input : work.output);
    // For the caller's arrays a place holds the offset alone.
    result.seek(static_cast<std::int64_t>(place.at) + place.stride * work.iteration);
    return result;
  }
  const Span& span = work.flat.emplace_back(Span{place.address(work.bases, work.iteration), bytes});
  return SpanCursor({&span, 1, bytes});
}

}  // namespace collectives
