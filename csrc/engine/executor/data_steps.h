// Steps that touch data: copies and reductions. They need nothing but the work, whose plan says which kernels to use.
#pragma once

#include <cstdint>

#include "core/buffer.h"
#include "engine/work.h"

namespace collectives {

class DataSteps {
 public:
  // For works whose input and output are one span each.
  static void copy(Work& work, const Step& step);
  // Works out where the operands of a reduction lie; reduce() then combines them.
  static void locate(Work& work, const Step& step);
  static void reduce(Work& work, const Step& step);

  // A copy or a reduction of buffers of several spans: piece by piece, from one border between spans to the next.
  static void move_spans(Work& work, const Step& step);

  // Over the `bytes` bytes of an operand of the current step. It may point into the work.
  static SpanCursor cursor(Work& work, const OperandPlace& place, std::int64_t bytes);
};

}  // namespace collectives
