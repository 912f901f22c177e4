// The executor's steps that touch data: copies, reductions, and the posting of messages.

#include <algorithm>
#include <cstring>

#include "core/take.h"
#include "runtime/executor.h"

namespace collectives {
namespace {

bool of_caller(Region region) { return region == Region::kInput || region == Region::kOutput; }

}  // namespace

// Where an operand lies, `done` bytes after its start.
std::byte* Executor::address(Work& work, const Operand& operand, std::int64_t done) const {
  const std::int64_t offset = operand.offset + operand.stride * work.iteration + done;
  switch (operand.region) {
    case Region::kInput:
      return work.input.spans[0].data + offset;
    case Region::kOutput:
      return work.output.spans[0].data + offset;
    case Region::kScratch:
      return work.scratch.data() + offset;
    case Region::kBox:
      return domain_->box(operand.member, work.base + operand.chunk + work.iteration) + offset;
    case Region::kInline:
      return domain_->header(operand.member, work.sequence).payload + offset;
    case Region::kPeerInput:
      return domain_->heap(operand.member) + work.input_heap_offset + offset;
    case Region::kPeerOutput:
      return domain_->heap(operand.member) + work.output_heap_offset + offset;
  }
  return nullptr;
}

// A copy or a reduction of `bytes` bytes that are contiguous in every operand.
template <typename Place>
void Executor::move_piece(Work& work, const Step& step, std::int64_t bytes, const Place& place) {
  const auto sources = work.plan->schedule.sources(step);
  const auto destinations = work.plan->schedule.destinations(step);
  const std::size_t behind = sources.size();
  if (step.kind == StepKind::kCopy) {
    std::byte* source = place(sources[0], 0);
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      std::byte* destination = place(destinations[i], behind + i);
      if (sources[0].take) {
        copy_taking(destination, source, bytes);
      } else if (destination != source) {
        std::memcpy(destination, source, bytes);
      }
    }
    return;
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    work.sources[i] = place(sources[i], i);
  }
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    work.destinations[i] = place(destinations[i], behind + i);
  }
  const ReduceFunction reduce = step.finish ? work.plan->reduce_finish : work.plan->reduce;
  reduce(work.destinations.data(), static_cast<int>(destinations.size()), work.sources.data(),
         static_cast<int>(sources.size()), bytes >> work.plan->element_shift, work.divisor);
  if (work.plan->takes) {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (sources[i].take) {
        take_lines(place(sources[i], i), bytes);
      }
    }
  }
}

void Executor::move(Work& work, const Step& step) {
  if (work.input.count <= 1 && work.output.count <= 1) {
    // Lines that are taken have to be so while they are in the nearest cache.
    const bool takes = step.kind == StepKind::kReduce && work.plan->takes;
    const std::int64_t block = takes ? kTakeBlock : step.length;
    for (std::int64_t done = 0; done < step.length; done += block) {
      const std::int64_t bytes = std::min(block, step.length - done);
      move_piece(work, step, bytes,
                 [&](const Operand& operand, std::size_t /*index*/) { return address(work, operand, done); });
    }
    return;
  }
  // Buffers of several spans are done piece by piece, from one border between spans to the next.
  const auto sources = work.plan->schedule.sources(step);
  const auto destinations = work.plan->schedule.destinations(step);
  const auto each_of_caller = [&](auto body) {
    std::size_t index = 0;
    for (const auto& operands : {sources, destinations}) {
      for (const Operand& operand : operands) {
        if (of_caller(operand.region)) {
          body(operand, work.cursors[index]);
        }
        ++index;
      }
    }
  };
  each_of_caller([&](const Operand& operand, SpanCursor& at) { at = cursor(work, operand, step.length); });
  for (std::int64_t done = 0; done < step.length;) {
    std::int64_t bytes = step.length - done;
    each_of_caller([&](const Operand& /*operand*/, SpanCursor& at) { bytes = at.piece(bytes).bytes; });
    move_piece(work, step, bytes, [&](const Operand& operand, std::size_t index) {
      return of_caller(operand.region) ? work.cursors[index].piece(bytes).data : address(work, operand, done);
    });
    done += bytes;
    each_of_caller([&](const Operand& /*operand*/, SpanCursor& at) { at.advance(bytes); });
  }
}

SpanCursor Executor::cursor(Work& work, const Operand& operand, std::int64_t bytes) {
  if (of_caller(operand.region)) {
    SpanCursor result(operand.region == Region::kInput ? work.input : work.output);
    result.seek(operand.offset + operand.stride * work.iteration);
    return result;
  }
  const Span& span = work.flat.emplace_back(Span{address(work, operand, 0), bytes});
  return SpanCursor({&span, 1, bytes});
}

// What run() would do with a plan whose small_exchange is set, in a third of the time. In place of a schedule that is
// looked up step by step: the work's step is 0 before the values are published, 1 before they are combined.
Progress Executor::run_small(Work& work, int spins) {
  // Beyond this the fetching takes longer than the wait that it fills.
  constexpr std::int64_t kFetchAhead = 2048;
  // The slot after the next one: the other ranks are done with it, and its lines arrive before they are needed.
  constexpr int kAhead = 2;
  const Plan& plan = *work.plan;
  const Schedule& schedule = plan.schedule;
  const Step& combine = schedule.steps[1];
  const std::int64_t bytes = combine.length;
  const auto published = [&](const Operand& operand) {
    return operand.region == Region::kInline ? domain_->header(operand.member, work.sequence).payload
                                             : domain_->box(operand.member, work.base);
  };
  if (work.step == 0) {
    const Operand& own = schedule.destinations(schedule.steps[0])[0];
    if (bytes > 0) {
      std::memcpy(published(own), work.input.spans[0].data, bytes);
    }
    signal_header(work);
    if (own.region == Region::kBox) {
      fetch_lines_to_write(domain_->box(rank_, work.base + kAhead), std::min(bytes, kFetchAhead));
    }
    work.step = 1;
    // Not before the others can see the values: this way it costs time that the rank waits anyway.
    if (work.record == 0) {
      recorder_.posted(work, communicator_);
    }
  }
  for (const auto waits = schedule.waits(combine); work.next_wait < waits.size(); ++work.next_wait) {
    const Look seen = await(work, waits[work.next_wait], spins);
    if (seen != Look::kThere) {
      return stopped(seen);
    }
  }
  const auto sources = schedule.sources(combine);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const bool own = sources[i].region == Region::kInput;
    work.sources[i] = own ? work.input.spans[0].data : published(sources[i]);
  }
  void* const destination = work.output.spans[0].data;
  plan.reduce_finish(&destination, 1, work.sources.data(), static_cast<int>(sources.size()),
                     bytes >> plan.element_shift, work.divisor);
  if (plan.takes) {
    for (const Operand& source : sources) {
      if (source.take) {
        take_lines(published(source), bytes);
      }
    }
  }
  work.step = 2;
  return Progress::kDone;
}

void Executor::post(Work& work, const Step& step) {
  const auto& peers = work.plan->peers;
  const auto position = std::find(peers.begin(), peers.end(), step.peer) - peers.begin();
  Stream& stream = *work.streams[position];
  const Schedule& schedule = work.plan->schedule;
  if (step.kind == StepKind::kSend) {
    SendRequest& request = work.sends.emplace_back();
    request.remaining = step.length;
    request.token = step.length == 0;
    if (!request.token) {
      request.source = cursor(work, schedule.sources(step)[0], step.length);
    }
    stream.sends.push_back(&request);
    return;
  }
  ReceiveRequest& request = work.receives.emplace_back();
  request.remaining = step.length;
  request.token = step.length == 0;
  request.element = work.plan->problem.element();
  if (!request.token) {
    request.destination = cursor(work, schedule.destinations(step)[0], step.length);
  }
  if (!request.token && step.kind == StepKind::kReceiveReduce) {
    request.source = cursor(work, schedule.sources(step)[0], step.length);
    request.source_first = step.own_first;
    request.reduce = step.finish ? work.plan->reduce_finish : work.plan->reduce;
    request.divisor = work.divisor;
  }
  stream.receives.push_back(&request);
}

}  // namespace collectives
