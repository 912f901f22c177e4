#include "engine/record.h"

#include <algorithm>

#include "engine/plan.h"

namespace collectives {

void describe_to(Recorder& recorder, Work& work, std::uint32_t communicator) {
  const Problem& problem = work.plan->problem;
  const bool alone = recorder.size() == 1;
  CallFacts facts;
  facts.algorithm = alone || work.plan->algorithm == nullptr ? nullptr : work.plan->algorithm->name.data();
  facts.bytes = std::max(work.input.bytes, work.output.bytes);
  facts.communicator = communicator;
  facts.peer = work.message.peer;
  facts.tag = work.message.tag;
  facts.root = problem.root;
  const std::size_t parts = std::max<std::size_t>(problem.counts.size(), 1);
  facts.tensors = problem.own != nullptr ? static_cast<std::uint32_t>(problem.own->tensors)
                                         : static_cast<std::uint32_t>(work.counts.size() / parts);
  facts.collective = problem.collective;
  facts.op = problem.op;
  facts.dtype = static_cast<DType>(work.signature.dtype & 0x7f);
  facts.sending = work.message.sending;
  recorder.describe(work, facts, work.name);
}

}  // namespace collectives
