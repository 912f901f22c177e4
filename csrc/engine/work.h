// One collective or message of one rank, in flight or about to be: where it stands in its schedule, and the memory it
// works on.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/error.h"
#include "core/intrusive_list.h"
#include "core/shapes.h"
#include "engine/completion.h"
#include "engine/continuation.h"
#include "engine/plan.h"
#include "recorder/recorder.h"
#include "transports/transport.h"

namespace collectives {

using Clock = std::chrono::steady_clock;

// A message that is no part of a collective.
struct Message {
  static constexpr int kNone = -1;  // the work is a collective
  static constexpr int kAny = -2;   // a receive from any rank, which has no message yet

  int peer = kNone;
  int tag = 0;
  bool sending = false;
};

// What a caller may say about the tensors of a call besides their memory and their shapes.
struct TensorDetails {
  std::vector<std::string> names;  // errors name the tensors by these, too, and not only by their numbers
  bool agreed = false;             // ranks must agree about the names, too
};

// The part of a call that fits into eight bytes, so that two are compared at once.
struct CallHead {
  Collective collective = Collective::kAllReduce;
  Op op = Op::kSum;
  DType dtype = DType::kFloat32;
  bool deterministic = false;
  int root = 0;
};

// What a caller asks for. The spans stay with the caller until the work is done.
struct Call : CallHead {
  int algorithm = 0;  // algorithm_id(), 0 for the selector's choice
  double factor = 1;  // premul_sum: of the input of this rank
  std::vector<Span> input;
  std::vector<Span> output;  // the same spans when in place
  // Vector collectives: the lengths of the parts of all ranks in elements, the same list on every rank, of all_to_all
  // by [from * size + to]; a list of tensors has as many entries for each part as there are tensors. Empty for one
  // tensor that every rank gives and gets in parts of the same length: then there is one span each way, without memory
  // where gather gives a rank nothing or scatter takes nothing from it. Empty also for an all_to_all of such parts of
  // several tensors, and where there is `own`.
  std::vector<std::int64_t> lengths;
  // all_to_all: what this rank knows of the lengths, once the ranks have told each other.
  std::shared_ptr<const OwnParts> own;
  // Of the inputs. None where the ranks need not agree about them: in messages, and in vector collectives, whose
  // callers compare them.
  Shapes shapes;
  std::shared_ptr<const TensorDetails> details;  // mostly none
  // The data are on devices and travel by NCCL. Here the ranks only agree about the call before any of them begins it:
  // there are no spans, and dense collectives have `lengths`, too, those of the tensors.
  bool by_nccl = false;
  Message message;
  double timeout_s = -1;  // the communicator's when negative
  std::string name;

  // What does not depend on the tensors.
  Problem problem() const {
    Problem result;
    result.collective = collective;
    result.op = op;
    result.dtype = dtype;
    result.root = root;
    return result;
  }
};

// What a call asks for. A call with the key of an earlier one needs nothing worked out that was worked out for that
// one.
struct CallKey {
  std::uint64_t head = 0;
  std::int64_t algorithm = -1;     // -1: the call has no key, so no other is like it
  std::int64_t input_bytes = -1;   // of the only array; -1: there is none
  std::int64_t output_bytes = -1;  // likewise
  // In symmetric memory ranks agree on the place, too. -1: private memory, wherever it lies.
  std::int64_t input_heap_offset = -1;
  std::int64_t output_heap_offset = -1;
  std::uint64_t shape = 0;  // a hash

  bool operator==(const CallKey&) const = default;
};

// A receive that waits for its turn stands in a list of them: see unmatched_receives.h.
struct Unmatched;

struct Work : Recording, ListNode<Work, Unmatched> {
  // Set by the communicator when the call is posted.
  std::shared_ptr<Plan> plan;
  std::uint64_t base = 0;  // number of the first chunk
  Signature signature;
  CallKey key;  // of the call that the work was prepared for; a later call of the same key uses the work again
  Message message;
  Buffer input;
  Buffer output;
  std::vector<Span> input_spans;
  std::vector<Span> output_spans;
  std::vector<std::int64_t> counts;  // elements of each tensor of the list as it was given, or of parts
  Shapes shapes;                     // the ranks have to agree about them
  std::shared_ptr<const TensorDetails> details;
  std::int64_t input_heap_offset = -1;  // symmetric memory
  std::int64_t output_heap_offset = -1;
  bool is_packed = false;  // a short list of tensors, packed into one before the call and unpacked after it
  std::vector<std::byte> packed;
  Span result_span;               // the output inside `packed`
  std::vector<std::byte> scaled;  // the input times its factor, where the output cannot hold it
  std::vector<std::byte> scratch;
  double divisor = 1;
  double timeout_s = 0;
  std::string name;
  // More calls follow this one before the work is over: see continuation.h, which also keeps their memory.
  std::unique_ptr<Continuation> continuation;
  bool continues = false;
  bool numbered = true;                     // false: it waits for a number, since such a work comes before it
  std::optional<Clock::time_point> posted;  // the clock is read when a thread first has to wait
  bool warned = false;

  // Where operands and flags lie in this call: see places.h. The row is that of the iteration.
  Bases bases{};
  Places::Row places;
  bool one_piece = false;     // input and output are one span each
  bool ends_at_once = false;  // the end of the work has nothing to release or unpack

  // Position in the schedule.
  std::uint32_t step = 0;
  std::uint32_t end = 0;  // the step behind the last
  std::uint32_t next_wait = 0;
  std::uint32_t loop_begin = 0;
  std::int64_t iteration = 0;
  std::int64_t iterations = 0;

  // Messages.
  std::vector<std::unique_ptr<Stream>>
      streams;                    // to plan->peers, in their order, and perhaps to others; or none (Swap)
  std::vector<int> stream_peers;  // the rank at the other end of each
  std::list<std::shared_ptr<Work>>::iterator listed;  // a message in flight: its place in Messages::active()
  std::deque<Span> flat;                              // spans of contiguous memory that cursors point to
  std::deque<SendRequest> sends;
  std::deque<ReceiveRequest> receives;

  // Scratch space of the executor.
  std::vector<SpanCursor> cursors;
  std::vector<void*> sources;
  std::vector<void*> destinations;

  // Written under the engine's lock. finished() is called without the lock, so the last write is a release: a thread
  // that sees it sees the results and `error`, too.
  std::atomic<WorkState> state{WorkState::kQueued};
  std::unique_ptr<CollectivesError> error;  // when failed
  // Of asynchronous calls only. Under the engine's lock; none once they are handed over.
  std::list<WorkCallback> callbacks;

  // To be called after input or output have changed.
  void find_arrays() {
    base_of(Region::kInput) = reinterpret_cast<std::uintptr_t>(input.spans[0].data);
    base_of(Region::kOutput) = reinterpret_cast<std::uintptr_t>(output.spans[0].data);
  }
  std::uintptr_t& base_of(Region region) { return bases[static_cast<std::size_t>(region)]; }
  bool is_message() const { return message.peer != Message::kNone; }
  bool finished() const {
    const WorkState s = state.load(std::memory_order_acquire);
    return s == WorkState::kDone || s == WorkState::kFailed;
  }
};

}  // namespace collectives
