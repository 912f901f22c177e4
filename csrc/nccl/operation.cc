#include "nccl/operation.h"

#include <optional>

#include "core/error.h"
#include "nccl/library.h"

namespace collectives {
namespace {

constexpr const char* kElsewhere =
    "; start the job with transport=\"auto\" and give this call arrays in host memory, or reduce as another dtype";

std::optional<NcclDataType> data_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return kNcclFloat16;
    case DType::kBFloat16:
      return kNcclBfloat16;
    case DType::kFloat32:
    case DType::kComplex64:
      return kNcclFloat32;
    case DType::kFloat64:
    case DType::kComplex128:
      return kNcclFloat64;
    case DType::kInt8:
      return kNcclInt8;
    case DType::kInt32:
      return kNcclInt32;
    case DType::kInt64:
      return kNcclInt64;
    case DType::kUInt8:
    case DType::kBool:
      return kNcclUint8;
    case DType::kUInt32:
      return kNcclUint32;
    case DType::kUInt64:
      return kNcclUint64;
    case DType::kFloat8E4M3FN:
      return kNcclFloat8E4M3;
    case DType::kFloat8E5M2:
      return kNcclFloat8E5M2;
    case DType::kInt16:
    case DType::kUInt16:
      break;
  }
  return std::nullopt;
}

// NCCL has no bool. Its values are bytes 0 and 1, for which these operations of uint8 give the same.
std::optional<NcclRedOp> bool_op(Op op) {
  switch (op) {
    case Op::kMax:
    case Op::kLogicalOr:
    case Op::kBitwiseOr:
      return kNcclMax;
    case Op::kMin:
    case Op::kProd:
    case Op::kLogicalAnd:
    case Op::kBitwiseAnd:
      return kNcclMin;
    default:
      return std::nullopt;
  }
}

std::optional<NcclRedOp> red_op(Op op) {
  switch (op) {
    case Op::kSum:
    case Op::kPremulSum:
      return kNcclSum;
    case Op::kAvg:
      return kNcclAvg;
    case Op::kProd:
      return kNcclProd;
    case Op::kMin:
      return kNcclMin;
    case Op::kMax:
      return kNcclMax;
    default:
      return std::nullopt;
  }
}

bool is_complex(DType dtype) { return dtype == DType::kComplex64 || dtype == DType::kComplex128; }

}  // namespace

std::string nccl_lacks(Collective collective, Op op, DType dtype, int version) {
  if (!reduces(collective)) {
    return {};
  }
  const std::string version_text = "NCCL " + nccl_version_text(version);
  const std::string what(name(dtype));
  if (!data_type(dtype)) {
    return version_text + " has no " + what + kElsewhere + ", such as int32";
  }
  if (is_complex(dtype) && op != Op::kSum && op != Op::kAvg && op != Op::kPremulSum) {
    return version_text + " has no " + std::string(name(op)) + " of " + what +
           "; give this call arrays in host memory, or sums";
  }
  const bool eight = dtype == DType::kFloat8E4M3FN || dtype == DType::kFloat8E5M2;
  if (eight && version < kNcclFloat8Version) {
    return version_text + " has no " + what + "; " + nccl_version_text(kNcclFloat8Version) + " and later have it" +
           kElsewhere + ", such as float16";
  }
  if (!(dtype == DType::kBool ? bool_op(op) : red_op(op))) {
    return version_text + " has no " + std::string(name(op)) + " of " + what +
           "; start the job with transport=\"auto\" and give this call arrays in host memory";
  }
  return {};
}

NcclOperation nccl_operation(Collective collective, Op op, DType dtype, int version) {
  NcclOperation operation;
  if (!reduces(collective)) {
    operation.values = static_cast<int>(size_of(dtype));
    return operation;
  }
  if (std::string lack = nccl_lacks(collective, op, dtype, version); !lack.empty()) {
    ErrorContext context;
    context.collective = name(collective);
    throw CollectivesError(ErrorKind::kBackend, lack, context);
  }
  operation.type = data_type(dtype).value_or(operation.type);  // nccl_lacks() has found both
  operation.op = (dtype == DType::kBool ? bool_op(op) : red_op(op)).value_or(operation.op);
  operation.values = is_complex(dtype) ? 2 : 1;  // sums and averages work on real and imaginary parts separately
  operation.scaled = op == Op::kPremulSum;
  return operation;
}

}  // namespace collectives
