// A collective on device memory, and how it is put together of calls of NCCL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/shapes.h"
#include "core/types.h"
#include "nccl/abi.h"
#include "nccl/operation.h"

namespace collectives {

// All memory belongs to the device of the communicator. A tensor is one piece, also of collectives of parts: its parts
// lie one behind the other.
struct NcclCall {
  Collective collective = Collective::kAllReduce;
  Op op = Op::kSum;
  DType dtype = DType::kFloat32;
  int root = 0;
  int peer = -1;  // messages
  bool sending = false;
  // As many as there are tensors. Empty where a rank gives or gets nothing: at gather, scatter, reduce and messages.
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  // Elements of the tensors; of collectives of parts those of all parts of all ranks, as Call::lengths of the engine.
  std::vector<std::int64_t> lengths;
  Shapes shapes;                  // Call::shapes of the engine
  std::vector<std::byte> factor;  // premul_sum: one value of the dtype, of complex numbers the real part
  void* stream = nullptr;
  double timeout_s = 0;
  std::string name;
};

// Which rank of how many a communicator is.
struct NcclPlace {
  int rank = 0;
  int size = 1;
};

// Throws ArgumentError unless there is as much memory as the lengths need.
void check_nccl_call(const NcclCall& call, const NcclPlace& place);

// Hands the call over to NCCL, between its ncclGroupStart and ncclGroupEnd. Stops at the first call that fails. op:
// what nccl_operation() says, of premul_sum the op that was made. scratch: a byte of the device, for barriers.
NcclResult issue_nccl_call(const NcclApi& api, const NcclCall& call, const NcclPlace& place,
                           const NcclOperation& operation, void* scratch, NcclComm comm);

}  // namespace collectives
