// From a call to a work that can run: checks of what is wrong by itself, the signature, the plan, buffers of the spans.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/executor/executor.h"
#include "engine/members.h"
#include "engine/plan.h"
#include "engine/work.h"
#include "memory/domain.h"
#include "predict/selector.h"
#include "schedule/algorithm.h"

namespace collectives {

class CallPreparation {
 public:
  // domain: nullptr where no rank is mapped.
  CallPreparation(const Domain* domain, const CommunicatorOptions& options, const Executor& executor)
      : domain_(domain),
        options_(options),
        selector_(options.topology, options.costs(), options.network, options.overrides, options.measured.processor),
        executor_(executor) {}

  // A collective. Throws ArgumentError or ArgumentTypeError for a call that is wrong by itself.
  void prepare(Work& work, const Call& call);
  // The common case: `work` ran a call of the same key, perhaps on other private memory.
  void prepare_again(Work& work, const Call& call) const {
    if (!call.input.empty()) {
      work.input_spans[0] = call.input[0];
      work.output_spans[0] = call.output[0];
      work.find_arrays();
    }
    work.timeout_s = timeout_of(call);
  }
  // A message to, or from, call.message.peer. Throws ArgumentError as above.
  void prepare_message(Work& work, const Call& call) const;
  // Throw ArgumentError for what is no rank, or no tag.
  void check_rank(int peer) const;
  static void check_tag(int tag);

 private:
  int rank() const { return options_.topology.rank; }
  int size() const { return options_.topology.size; }
  double timeout_of(const Call& call) const { return call.timeout_s >= 0 ? call.timeout_s : options_.timeout_s; }
  void prepare_agreement(Work& work, const Call& call);
  void find_parts(Work& work, const Call& call);
  void find_plan(Work& work, const Call& call, const Signature& signature, bool symmetric);
  void add_shapes(Work& work, const Call& call) const;
  static void scale(Work& work, const Call& call);
  void make_buffers(Work& work, std::int64_t bytes, std::int64_t result_bytes) const;
  void finish(Work& work, const Call& call) const;

  const Domain* domain_;
  const CommunicatorOptions& options_;
  Selector selector_;
  const Executor& executor_;
  PlanCache plans_;
  // Problem::counts and Problem::own of the call that is being prepared.
  std::vector<std::int64_t> counts_;
  std::shared_ptr<const OwnParts> own_;
};

}  // namespace collectives
