// From a call to a work: checks, the signature, the plan.

#include <cstring>

#include "core/error.h"
#include "runtime/communicator.h"

namespace collectives {
namespace {

// Lists of tensors up to this size are packed into one before they travel: cheaper than many tiny pieces.
constexpr std::int64_t kPackBytes = 16 << 10;

std::int64_t total_bytes(const std::vector<Span>& spans) {
  std::int64_t total = 0;
  for (const Span& span : spans) {
    total += span.bytes;
  }
  return total;
}

void pack(const Buffer& from, std::byte* to) {
  for (std::int64_t i = 0; i < from.count; ++i) {
    std::memcpy(to, from.spans[i].data, from.spans[i].bytes);
    to += from.spans[i].bytes;
  }
}

}  // namespace

// Before the lock is taken: at the time of the fork a thread that the child does not have may have held it.
void Communicator::refuse_after_fork() const {
  if (Engine::forked()) {
    ErrorContext context;
    context.rank = rank();
    throw CollectivesError(ErrorKind::kForked,
                           "this process was forked from one that used the communicator; only the parent can use it. "
                           "Start processes with the spawn method",
                           context);
  }
}

void Communicator::check_usable() const {
  ErrorContext context;
  context.rank = rank();
  if (closed_) {
    throw CollectivesError(ErrorKind::kClosed,
                           options_.members.empty()
                               ? "the communicator is closed; call collectives.init() for a new one"
                               : "the communicator of this group is closed; make a new group",
                           context);
  }
  if (error_ != nullptr) {
    context.peer = error_->culprit;
    context.sequence = error_->sequence;
    throw CollectivesError(error_->kind,
                           "the communicator has failed before and cannot be used any more: " + error_->text, context);
  }
}

void Communicator::prepare(Work& work, const Call& call) {
  if (heard_ != nullptr && error_ == nullptr) {
    fail(*heard_);
  }
  check_usable();
  if (call.root < 0 || call.root >= size()) {
    throw ArgumentError("root " + std::to_string(call.root) + " is out of range: the group has ranks 0 to " +
                        std::to_string(size() - 1));
  }
  work.input_spans.assign(call.input.begin(), call.input.end());
  work.output_spans.assign(call.output.begin(), call.output.end());
  const std::int64_t bytes = total_bytes(call.input);
  work.input = {work.input_spans.data(), static_cast<std::int64_t>(work.input_spans.size()), bytes};
  work.output = {work.output_spans.data(), static_cast<std::int64_t>(work.output_spans.size()), bytes};
  const auto element = static_cast<std::int64_t>(size_of(call.dtype));
  if (bytes / element > kMaxElements) {
    throw ArgumentError(std::to_string(bytes / element) + " elements are too many for one collective; at most " +
                        std::to_string(kMaxElements) + " are possible");
  }
  // Symmetric memory takes part as such when the call is one array that lies there on both sides.
  bool symmetric = false;
  if (domain_ != nullptr && bytes > 0 && work.input.count == 1) {
    work.input_heap_offset = domain_->heap_offset(work.input_spans[0].data, bytes);
    work.output_heap_offset = domain_->heap_offset(work.output_spans[0].data, bytes);
    symmetric = work.input_heap_offset >= 0 && work.output_heap_offset >= 0;
  }
  work.counts.clear();
  for (const Span& span : call.input) {
    work.counts.push_back(span.bytes / element);
  }
  Signature signature =
      make_signature(call.collective, call.op, call.dtype, symmetric ? MemoryKind::kSymmetric : MemoryKind::kPrivate,
                     call.deterministic, call.algorithm, call.root, work.counts);
  bind(work, call, signature, symmetric);
  // No tensor at all is like one of no elements; and short lists travel as one.
  if (work.input.count != 1 && bytes <= kPackBytes) {
    work.packed.resize(bytes);
    pack(work.input, work.packed.data());
    work.input_spans.assign(1, {work.packed.data(), bytes});
    work.input = {work.input_spans.data(), 1, bytes};
    work.output = work.input;
  } else {
    work.packed.clear();
  }
  work.divisor = size();
  work.timeout_s = call.timeout_s >= 0 ? call.timeout_s : options_.timeout_s;
  work.name.assign(call.name);
  work.posted.reset();
  work.warned = false;
  work.error.reset();
  work.state.store(WorkState::kQueued, std::memory_order_relaxed);
  // From here on the call counts.
  work.sequence = next_sequence_++;
  work.base = next_chunk_;
  next_chunk_ += work.plan->schedule.chunks;
}

// Finds or makes the plan.
void Communicator::bind(Work& work, const Call& call, const Signature& signature, bool symmetric) {
  if (Plan* plan = plans_.find(signature); plan != nullptr) {
    if (work.plan.get() != plan) {
      work.plan = plans_.entry(signature);
    }
    return;
  }
  Problem problem;
  problem.collective = call.collective;
  problem.op = call.op;
  problem.dtype = call.dtype;
  problem.memory = symmetric ? MemoryKind::kSymmetric : MemoryKind::kPrivate;
  problem.count = total_count(signature);
  problem.root = call.root;
  const Algorithm* algorithm = nullptr;
  if (call.algorithm == 0) {
    algorithm = &select(problem, options_.topology, call.deterministic);
  } else {
    algorithm = &algorithms()[call.algorithm - 1];
    if (call.deterministic && algorithm->determinism != Determinism::kCanonical) {
      throw ArgumentError("the result of algorithm " + std::string(algorithm->name) +
                          " depends on the size; with deterministic=True leave the choice to algorithm=\"auto\"");
    }
  }
  const Limits limits = domain_ != nullptr ? domain_->limits() : Limits();
  work.plan = make_plan(signature, problem, *algorithm, options_.topology, limits);
  plans_.put(work.plan);
}

}  // namespace collectives
