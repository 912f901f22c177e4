// Element types and operations as NCCL names them, and those that it lacks.
#pragma once

#include <string>

#include "core/types.h"
#include "nccl/abi.h"

namespace collectives {

struct NcclOperation {
  NcclDataType type = kNcclUint8;
  NcclRedOp op = kNcclSum;
  int values = 1;       // of `type`, for one element: 2 for complex numbers
  bool scaled = false;  // premul_sum: NCCL needs an op that is made for each call
};

// Where values are only moved, NCCL is given bytes, whatever the dtype. Throws BackendError, with an alternative, for a
// reduction that this version of NCCL lacks.
NcclOperation nccl_operation(Collective collective, Op op, DType dtype, int version);

// The reason for which nccl_operation() throws; empty where it does not.
std::string nccl_lacks(Collective collective, Op op, DType dtype, int version);

}  // namespace collectives
