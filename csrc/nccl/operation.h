// What NCCL calls our element types and operations, and what it lacks.
#pragma once

#include <string>

#include "core/types.h"
#include "nccl/abi.h"

namespace collectives {

struct NcclOperation {
  NcclDataType type = kNcclUint8;
  NcclRedOp op = kNcclSum;
  int values = 1;       // of NCCL's type, for one element of ours
  bool scaled = false;  // premul_sum, whose op is made for each call
};

// Values that only move are bytes to NCCL, whatever their type. Throws BackendError, with an alternative, for a
// reduction that NCCL of this version lacks.
NcclOperation nccl_operation(Collective collective, Op op, DType dtype, int version);

// Why nccl_operation() throws; empty where it does not.
std::string nccl_lacks(Collective collective, Op op, DType dtype, int version);

}  // namespace collectives
