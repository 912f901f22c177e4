// The part of NCCL's C interface that is used, declared here: building needs no header of NCCL, and nothing is linked
// with it.
//
// Names, numbers and layouts are those of nccl.h, as they have been since kNcclLeastVersion.
// tests/nccl/test_nccl_library.py compares them with a real header where there is one.
#pragma once

#include <climits>
#include <cstddef>

namespace collectives {

using NcclComm = struct NcclCommOpaque*;

struct NcclUniqueId {
  char internal[128];
};

enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclSystemError = 2,
  kNcclInternalError = 3,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,
  kNcclInProgress = 7,
};

enum NcclRedOp : int { kNcclSum = 0, kNcclProd = 1, kNcclMax = 2, kNcclMin = 3, kNcclAvg = 4 };

enum NcclDataType : int {
  kNcclInt8 = 0,
  kNcclUint8 = 1,
  kNcclInt32 = 2,
  kNcclUint32 = 3,
  kNcclInt64 = 4,
  kNcclUint64 = 5,
  kNcclFloat16 = 6,
  kNcclFloat32 = 7,
  kNcclFloat64 = 8,
  kNcclBfloat16 = 9,
  kNcclFloat8E4M3 = 10,  // from kNcclFloat8Version on
  kNcclFloat8E5M2 = 11,
};
inline constexpr int kNcclScalarHostImmediate = 1;

// ncclConfig_t of version 2.14, which its field `version` says. Later versions read only as many bytes as `size` says,
// and use their defaults for the fields behind them.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21400;
  int blocking = INT_MIN;  // NCCL's default
};

// Versions are written as NCCL does from 2.9 on: 22809 for 2.28.9.
inline constexpr int kNcclLeastVersion = 21400;      // the first whose calls need not block, nor block an abort
inline constexpr int kNcclFloat8Version = 22400;     // the first with 8-bit floats
inline constexpr int kNcclMultiRankVersion = 23003;  // the first that can have several ranks on a device, when asked to

// The functions. Streams are those of the CUDA runtime.
struct NcclApi {
  NcclResult (*get_version)(int* version);
  NcclResult (*get_unique_id)(NcclUniqueId* id);
  NcclResult (*comm_init_rank_config)(NcclComm* comm, int size, NcclUniqueId id, int rank, NcclConfig* config);
  NcclResult (*comm_finalize)(NcclComm comm);
  NcclResult (*comm_destroy)(NcclComm comm);
  NcclResult (*comm_abort)(NcclComm comm);
  NcclResult (*comm_get_async_error)(NcclComm comm, NcclResult* result);
  const char* (*get_error_string)(NcclResult result);
  NcclResult (*comm_count)(NcclComm comm, int* count);
  NcclResult (*comm_cu_device)(NcclComm comm, int* device);
  NcclResult (*all_reduce)(const void* from, void* to, std::size_t count, NcclDataType type, NcclRedOp op,
                           NcclComm comm, void* stream);
  NcclResult (*broadcast)(const void* from, void* to, std::size_t count, NcclDataType type, int root, NcclComm comm,
                          void* stream);
  NcclResult (*reduce)(const void* from, void* to, std::size_t count, NcclDataType type, NcclRedOp op, int root,
                       NcclComm comm, void* stream);
  NcclResult (*all_gather)(const void* from, void* to, std::size_t count, NcclDataType type, NcclComm comm,
                           void* stream);
  NcclResult (*reduce_scatter)(const void* from, void* to, std::size_t count, NcclDataType type, NcclRedOp op,
                               NcclComm comm, void* stream);
  NcclResult (*send)(const void* from, std::size_t count, NcclDataType type, int peer, NcclComm comm, void* stream);
  NcclResult (*recv)(void* to, std::size_t count, NcclDataType type, int peer, NcclComm comm, void* stream);
  NcclResult (*group_start)();
  NcclResult (*group_end)();
  NcclResult (*red_op_create_pre_mul_sum)(NcclRedOp* op, void* scalar, NcclDataType type, int residence, NcclComm comm);
  NcclResult (*red_op_destroy)(NcclRedOp op, NcclComm comm);
  const char* (*get_last_error)(NcclComm comm);  // nullptr where this NCCL has none
};

}  // namespace collectives
