// Errors of NCCL, with its own texts and advice.
#pragma once

#include <string>

#include "core/error.h"
#include "nccl/abi.h"

namespace collectives {

// doing: what NCCL was asked for, such as "rank 1, all_reduce by NCCL". comm: may be nullptr.
CollectivesError nccl_error(const NcclApi& api, NcclComm comm, NcclResult result, const std::string& doing,
                            ErrorContext context);

}  // namespace collectives
