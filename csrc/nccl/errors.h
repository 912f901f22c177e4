// Errors of NCCL, in the library's own words and with advice.
#pragma once

#include <string>

#include "core/error.h"
#include "nccl/abi.h"

namespace collectives {

// doing: "rank 1, all_reduce by NCCL", what NCCL was asked for. comm: may be nullptr.
CollectivesError nccl_error(const NcclApi& api, NcclComm comm, NcclResult result, const std::string& doing,
                            ErrorContext context);

}  // namespace collectives
