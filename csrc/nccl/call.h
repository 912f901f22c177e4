// A collective on device memory, and the calls of NCCL that it is made of.
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

// All memory belongs to the device of the communicator. A tensor is contiguous; in vector collectives its parts lie one
// behind the other.
struct NcclCall {
  Collective collective = Collective::kAllReduce;
  Op op = Op::kSum;
  DType dtype = DType::kFloat32;
  int root = 0;
  int peer = -1;  // messages
  bool sending = false;
  // One for each tensor. Empty where this rank sends or receives nothing: in gather, scatter, reduce and messages.
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  // Elements of each tensor; in vector collectives of each part of all ranks, as Call::lengths of the engine.
  std::vector<std::int64_t> lengths;
  Shapes shapes;                  // Call::shapes of the engine
  std::vector<std::byte> factor;  // premul_sum: one value of the dtype, of complex numbers the real part
  void* stream = nullptr;
  double timeout_s = 0;
  std::string name;
};

// The rank of a communicator, and the size of its group.
struct NcclRank {
  int rank = 0;
  int size = 1;
};

// Throws ArgumentError unless there is as much memory as the lengths need.
void check_nccl_call(const NcclCall& call, const NcclRank& self);

// Makes the calls of NCCL; the caller makes ncclGroupStart before and ncclGroupEnd after them. Stops at the first that
// fails. operation: of nccl_operation(), for premul_sum with the op that was made for this call. scratch: a byte of
// device memory, for barriers.
NcclResult issue_nccl_call(const NcclApi& api, const NcclCall& call, const NcclRank& self,
                           const NcclOperation& operation, void* scratch, NcclComm comm);

}  // namespace collectives
