// Calls that are like an earlier one, for which everything is worked out already.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>

#include "core/buffer.h"
#include "engine/members.h"
#include "engine/spare_works.h"
#include "engine/work.h"
#include "memory/domain.h"

namespace collectives {

class RepeatedCalls {
 public:
  RepeatedCalls(const Domain* domain, const CommunicatorOptions& options) : domain_(domain), options_(options) {}

  // Whether the call is the last one again, of which nothing has to be worked out, not even its key.
  bool is_last(const Call& call) const {
    return call.input.size() == 1 && call.output.size() == 1 && last_.work != nullptr && last_.input == call.input[0] &&
           last_.output == call.output[0] && last_.shape == call.shapes.hash() && last_.algorithm == call.algorithm &&
           last_.timeout_s == call.timeout_s &&
           last_.head == std::bit_cast<std::uint64_t>(static_cast<const CallHead&>(call)) && is_keyed(call);
  }
  Work& last() const { return *last_.work; }
  std::shared_ptr<Work>& last_place() const { return *last_.place; }

  // The next call is worked out again. For whatever ends one of the conditions under which there is a last call: the
  // communicator is usable, nothing is in flight or waits for its turn, and the work is in its place and was not waited
  // for.
  void forget_last() { last_.work = nullptr; }
  // `place` is that of the work of this call, which was prepared under this key.
  void remember(const Call& call, const CallKey& key, std::shared_ptr<Work>& place) {
    if (key.algorithm >= 0 && !call.input.empty()) {
      last_ = {&place,         place.get(),   key.head,       call.algorithm,
               call.timeout_s, call.input[0], call.output[0], call.shapes.hash()};
    }
  }

  // Of a call on one array or none, about which ranks have to agree on nothing but what is in the key.
  CallKey key_of(const Call& call) const {
    CallKey key;
    if (call.input.size() > 1 || call.output.size() != call.input.size() || !is_keyed(call) ||
        call.op == Op::kPremulSum || call.root < 0 || call.root >= options_.topology.size) {
      return key;
    }
    key.head = std::bit_cast<std::uint64_t>(static_cast<const CallHead&>(call));
    key.algorithm = call.algorithm;
    if (!call.input.empty()) {
      key.input_bytes = call.input[0].bytes;
      key.output_bytes = call.output[0].bytes;
      key.shape = options_.compare_shapes ? call.shapes.hash() : 0;
      if (domain_ != nullptr) {
        key.input_heap_offset = domain_->heap_offset(call.input[0].data, call.input[0].bytes);
        key.output_heap_offset = domain_->heap_offset(call.output[0].data, call.output[0].bytes);
      }
    }
    return key;
  }
  SpareWorks& spares() { return spares_; }

 private:
  // Whether it has none of what keeps a call from having a key, besides its arrays, its root and its op.
  static bool is_keyed(const Call& call) {
    return call.lengths.empty() && call.own == nullptr && !call.by_nccl && call.details == nullptr && call.name.empty();
  }

  // The work is kept beside its place, which would be one load more before anything begins.
  struct LastCall {
    std::shared_ptr<Work>* place = nullptr;
    Work* work = nullptr;
    std::uint64_t head = 0;
    int algorithm = 0;
    double timeout_s = 0;  // as the call had it
    Span input;
    Span output;
    std::uint64_t shape = 0;
  };

  const Domain* domain_;
  const CommunicatorOptions& options_;
  LastCall last_;
  SpareWorks spares_;
};

}  // namespace collectives
