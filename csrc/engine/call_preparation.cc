#include "engine/call_preparation.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>

#include "core/error.h"
#include "engine/messages.h"

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

void pack(const std::vector<Span>& from, std::byte* to) {
  for (const Span& span : from) {
    if (span.bytes > 0) {
      std::memcpy(to, span.data, span.bytes);
    }
    to += span.bytes;
  }
}

std::size_t number_of_parts(Collective collective, int size) {
  const auto ranks = static_cast<std::size_t>(size);
  return collective == Collective::kAllToAll ? ranks * ranks : ranks;
}

// Lengths of an all_to_all whose parts are all alike: those of one part, as there are n of them whatever the number of
// ranks. Found in the spans where the call has no lengths.
bool find_one_length(const Call& call, int size, std::vector<std::int64_t>& lengths) {
  if (call.collective != Collective::kAllToAll) {
    return false;
  }
  const auto ranks = static_cast<std::size_t>(size);
  const auto element = static_cast<std::int64_t>(size_of(call.dtype));
  if (!call.lengths.empty()) {
    const std::size_t tensors = call.lengths.size() / (ranks * ranks);
    const bool even = tensors > 0 && call.lengths.size() % (ranks * ranks) == 0 &&
                      std::equal(call.lengths.begin() + static_cast<std::ptrdiff_t>(tensors), call.lengths.end(),
                                 call.lengths.begin());
    if (even) {
      lengths.assign(call.lengths.begin(), call.lengths.begin() + static_cast<std::ptrdiff_t>(tensors));
    }
    return even;
  }
  lengths.clear();
  if (call.input.size() == 1) {
    lengths.push_back(call.input[0].bytes / size / element);
  }
  for (std::size_t t = 0; lengths.size() < call.input.size() / ranks && call.input.size() > 1; ++t) {
    lengths.push_back(call.input[t].bytes / element);
  }
  return true;
}

// Call::lengths, worked out where the call leaves them out.
void find_lengths(const Call& call, int size, std::vector<std::int64_t>& lengths) {
  if (!call.lengths.empty() || call.input.size() != 1 || call.output.size() != 1) {
    lengths = call.lengths;
    return;
  }
  const bool splits = call.collective == Collective::kScatter || call.collective == Collective::kReduceScatter;
  const std::int64_t part = splits ? call.output[0].bytes : call.input[0].bytes;
  lengths.assign(static_cast<std::size_t>(size), part / static_cast<std::int64_t>(size_of(call.dtype)));
}

// The elements of each part: what its tensors have together.
std::vector<std::int64_t> part_counts(const std::vector<std::int64_t>& lengths, std::size_t parts) {
  if (lengths.size() % parts != 0) {
    throw ArgumentError(std::to_string(lengths.size()) + " lengths are no multiple of the " + std::to_string(parts) +
                        " parts");
  }
  const std::size_t tensors = lengths.size() / parts;
  std::vector<std::int64_t> counts(parts, 0);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    counts[i / tensors] += lengths[i];
  }
  return counts;
}

// The memory of the caller must hold exactly what the lengths say.
void check_lengths(const Work& work, int rank, int size) {
  const Problem& problem = work.plan->problem;
  if (!is_vector(problem.collective)) {
    return;
  }
  const auto check = [&](const char* what, std::int64_t given, std::int64_t needed) {
    if (given != needed) {
      throw ArgumentError(std::string("the ") + what + " has " + std::to_string(given) +
                          " bytes, but the lengths say " + std::to_string(needed));
    }
  };
  check("input", total_bytes(work.input_spans), problem.input_bytes(rank, size));
  check("output", total_bytes(work.output_spans), problem.output_bytes(rank, size));
}

}  // namespace

void CallPreparation::prepare(Work& work, const Call& call) {
  work.key = CallKey();
  work.described = 0;
  if (call.root < 0 || call.root >= size()) {
    throw ArgumentError("root " + std::to_string(call.root) + " is out of range: the group has ranks 0 to " +
                        std::to_string(size() - 1));
  }
  work.input_spans.assign(call.input.begin(), call.input.end());
  work.output_spans.assign(call.output.begin(), call.output.end());
  if (call.by_nccl) {
    prepare_agreement(work, call);
    return;
  }
  const std::int64_t bytes = total_bytes(call.input);
  const std::int64_t result_bytes = total_bytes(call.output);
  const auto element = static_cast<std::int64_t>(size_of(call.dtype));
  if (const std::int64_t most = std::max(bytes, result_bytes) / element; most > kMaxElements) {
    throw ArgumentError(std::to_string(most) + " elements are too many for one collective; at most " +
                        std::to_string(kMaxElements) + " are possible");
  }
  const bool parts = is_vector(call.collective);
  // Symmetric memory takes part as such when the call is one array that lies there on both sides.
  bool symmetric = false;
  work.input_heap_offset = work.output_heap_offset = -1;
  const bool moves = call.op == Op::kPremulSum && call.collective != Collective::kAllReduce;  // see scale()
  if (domain_ != nullptr && !parts && !moves && bytes > 0 && work.input_spans.size() == 1) {
    work.input_heap_offset = domain_->heap_offset(work.input_spans[0].data, bytes);
    work.output_heap_offset = domain_->heap_offset(work.output_spans[0].data, bytes);
    symmetric = work.input_heap_offset >= 0 && work.output_heap_offset >= 0;
  }
  work.counts.clear();
  counts_.clear();
  own_ = nullptr;
  if (parts) {
    find_parts(work, call);
  } else {
    for (const Span& span : call.input) {
      work.counts.push_back(span.bytes / element);
    }
  }
  Signature signature =
      make_signature(call.collective, call.op, call.dtype, symmetric ? MemoryKind::kSymmetric : MemoryKind::kPrivate,
                     call.deterministic, call.algorithm, call.root, work.counts);
  find_plan(work, call, signature, symmetric);
  check_lengths(work, rank(), size());
  signature.algorithm = work.plan->algorithm_number;
  work.signature = symmetric ? placed(signature, work.input_heap_offset, work.output_heap_offset) : signature;
  work.details = call.details;
  add_shapes(work, call);
  if (call.details != nullptr && call.details->agreed) {
    work.signature = named(work.signature, call.details->names);
  }
  if (call.op == Op::kPremulSum) {
    scale(work, call);
  }
  make_buffers(work, bytes, result_bytes);
  work.divisor = size();
  finish(work, call);
}

// The lengths that the ranks agree about in the signature, and those of the problem.
void CallPreparation::find_parts(Work& work, const Call& call) {
  if (call.own != nullptr && !call.own->even()) {
    own_ = call.own;
    work.counts = own_->totals;
  } else if (call.own != nullptr) {
    // Of lists of tensors only all that are in a part are known to be as long: the first stands for it.
    work.counts.assign(static_cast<std::size_t>(call.own->tensors), 0);
    counts_.assign(1, call.own->all.longest);
    if (!work.counts.empty()) {
      work.counts[0] = counts_[0];
    }
  } else if (find_one_length(call, size(), work.counts)) {
    counts_.assign(1, std::accumulate(work.counts.begin(), work.counts.end(), std::int64_t{0}));
  } else {
    find_lengths(call, size(), work.counts);
    counts_ = part_counts(work.counts, number_of_parts(call.collective, size()));
  }
}

// Vector collectives leave lengths open, but no shapes: callers that give any want them compared.
void CallPreparation::add_shapes(Work& work, const Call& call) const {
  if (options_.compare_shapes || is_vector(call.collective)) {
    work.shapes = call.shapes;
    work.signature = shaped(work.signature, work.shapes);
  } else {
    work.shapes.clear();
  }
}

// What every collective needs at last.
void CallPreparation::finish(Work& work, const Call& call) const {
  work.timeout_s = timeout_of(call);
  work.name.assign(call.name);
  work.error.reset();
}

// What runs is a barrier that carries the signature of the call, and is known by its name in errors and the recorder.
void CallPreparation::prepare_agreement(Work& work, const Call& call) {
  static const Algorithm nccl = {"nccl", Collective::kBarrier, {}, {}, Determinism::kFixed, nullptr, nullptr, nullptr};
  work.input_heap_offset = work.output_heap_offset = -1;
  work.counts = call.lengths;
  work.signature = make_signature(call.collective, call.op, call.dtype, MemoryKind::kPrivate, false, kByNccl, call.root,
                                  work.counts);
  counts_.clear();
  own_ = nullptr;
  if (is_vector(call.collective)) {
    counts_ = part_counts(work.counts, number_of_parts(call.collective, size()));
  }
  if (plans_.find(work.signature, counts_, nullptr) != nullptr) {
    work.plan = plans_.entry(work.signature);
  } else {
    Problem barrier;
    barrier.collective = Collective::kBarrier;
    work.plan = make_plan(work.signature, barrier, selector_.choose(barrier, false), options_.topology, domain_);
    work.plan->algorithm = &nccl;
    work.plan->problem = call.problem();
    work.plan->problem.counts = counts_;
    plans_.put(work.plan);
  }
  add_shapes(work, call);
  make_buffers(work, 0, 0);
  finish(work, call);
}

// premul_sum: the collective runs over the input times its factor. All-reduce has room for that in the output, which
// then is the input; others get memory of their own.
void CallPreparation::scale(Work& work, const Call& call) {
  const ScaleFunction scale = best_reducer().scale(call.dtype);
  const auto element = static_cast<std::int64_t>(size_of(call.dtype));
  if (call.collective == Collective::kAllReduce) {
    for (std::size_t i = 0; i < work.input_spans.size(); ++i) {
      scale(work.output_spans[i].data, work.input_spans[i].data, work.input_spans[i].bytes / element, call.factor);
    }
    work.input_spans = work.output_spans;
    work.input_heap_offset = work.output_heap_offset;
    return;
  }
  const std::int64_t bytes = total_bytes(work.input_spans);
  work.scaled.resize(bytes);
  std::byte* to = work.scaled.data();
  for (const Span& span : work.input_spans) {
    scale(to, span.data, span.bytes / element, call.factor);
    to += span.bytes;
  }
  work.input_spans.assign(1, {work.scaled.data(), bytes});
}

// Makes buffers of the spans, and binds the work to them. Short lists travel as one piece, and no tensor at all is like
// one of no elements.
void CallPreparation::make_buffers(Work& work, std::int64_t bytes, std::int64_t result_bytes) const {
  const bool lists = work.input_spans.size() > 1 || work.output_spans.size() > 1;
  const bool apart = is_vector(work.plan->problem.collective);  // input and output differ in length
  const std::int64_t room = apart ? bytes + result_bytes : bytes;
  work.is_packed = lists && room <= kPackBytes;
  if (work.is_packed) {
    work.packed.resize(room);
    pack(work.input_spans, work.packed.data());
    work.input_spans.assign(1, {work.packed.data(), bytes});
    work.result_span = {work.packed.data() + (apart ? bytes : 0), result_bytes};
  } else if (work.input_spans.empty()) {
    work.input_spans.assign(1, {});
  }
  if (!work.is_packed && work.output_spans.empty()) {
    work.output_spans.assign(1, {});
  }
  work.input = {work.input_spans.data(), static_cast<std::int64_t>(work.input_spans.size()), bytes};
  work.output = work.is_packed ? Buffer{&work.result_span, 1, result_bytes}
                               : Buffer{work.output_spans.data(), static_cast<std::int64_t>(work.output_spans.size()),
                                        result_bytes};
  const Schedule& schedule = work.plan->schedule;
  work.ends_at_once = !schedule.uses_links && schedule.scratch_bytes == 0 && !work.is_packed && work.scaled.empty();
  executor_.bind(work);
}

// Finds or makes the plan.
void CallPreparation::find_plan(Work& work, const Call& call, const Signature& signature, bool symmetric) {
  if (Plan* plan = plans_.find(signature, counts_, own_.get()); plan != nullptr) {
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
  problem.counts = counts_;
  problem.own = own_;
  if (call.collective == Collective::kAllToAll && counts_.size() == 1) {
    problem.count = counts_[0] * size() * size();
  }
  const Algorithm* algorithm = nullptr;
  if (call.algorithm == 0) {
    algorithm = &selector_.choose(problem, call.deterministic);
  } else {
    algorithm = &algorithms()[call.algorithm - 1];
    if (call.deterministic && algorithm->determinism != Determinism::kCanonical) {
      throw ArgumentError("the result of algorithm " + std::string(algorithm->name) +
                          " depends on the size; with deterministic=True leave the choice to algorithm=\"auto\"");
    }
    // That the parts differ in length is known only now, to all ranks alike.
    if (own_ != nullptr && !algorithm->unsupported(problem, options_.topology).empty()) {
      algorithm = &selector_.choose(problem, call.deterministic);
    }
  }
  work.plan = make_plan(signature, problem, *algorithm, options_.topology, domain_);
  plans_.put(work.plan);
}

void CallPreparation::check_rank(int peer) const {
  if (peer < 0 || peer >= size()) {
    throw ArgumentError("rank " + std::to_string(peer) + " cannot be the other side of a message of rank " +
                        std::to_string(rank()) + ": the group has ranks 0 to " + std::to_string(size() - 1));
  }
}

void CallPreparation::check_tag(int tag) {
  if (tag < 0 || tag > kMaxTag) {
    throw ArgumentError("tag " + std::to_string(tag) + " is out of range: 0 to " + std::to_string(kMaxTag));
  }
}

void CallPreparation::prepare_message(Work& work, const Call& call) const {
  const Message& message = call.message;
  const bool any = message.peer == Message::kAny && !message.sending && !call.by_nccl;
  if (!any) {
    check_rank(message.peer);
  }
  if (call.by_nccl && message.peer == rank()) {
    throw ArgumentError("rank " + std::to_string(rank()) + " sends nothing to itself by NCCL");
  }
  check_tag(message.tag);
  static const auto plan = [] {
    auto empty = std::make_shared<Plan>();
    empty->problem.collective = Collective::kMessage;
    return empty;
  }();
  work.plan = plan;
  work.message = message;
  work.input_spans = work.output_spans = message.sending ? call.input : call.output;
  std::int64_t bytes = 0;
  for (const Span& span : work.input_spans) {
    work.counts.push_back(span.bytes / static_cast<std::int64_t>(size_of(call.dtype)));
    bytes += span.bytes;
  }
  work.input = work.output = {work.input_spans.data(), static_cast<std::int64_t>(work.input_spans.size()), bytes};
  if (call.by_nccl) {
    work.counts = call.lengths;
  }
  work.signature = make_signature(Collective::kMessage, Op::kSum, call.dtype, MemoryKind::kPrivate, false,
                                  call.by_nccl ? kByNccl : 0, 0, work.counts);
  finish(work, call);
}

}  // namespace collectives
