#include "nccl/operation.h"

#include <optional>

#include "core/error.h"
#include "nccl/library.h"

namespace collectives {
namespace {

constexpr const char* kElsewhere =
    "; start the job with transport=\"auto\" and give this call arrays in host memory, or reduce as another dtype";

std::optional<NcclDataType> data_type(DType dtype) {
  const int type = facts(dtype).nccl;
  return type == kNcclLacks ? std::nullopt : std::optional(static_cast<NcclDataType>(type));
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
  const int number = facts(op).nccl;
  return number == kNcclLacks ? std::nullopt : std::optional(static_cast<NcclRedOp>(number));
}

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
  const bool eight = is_narrow(dtype) && size_of(dtype) == 1;
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
