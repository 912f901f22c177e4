// The element types: one row for each, which is all that the library knows of one besides its kernels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace collectives {

// What its values are.
enum class DTypeKind : std::uint8_t { kReal, kSigned, kUnsigned, kBool, kComplex };

// DLDataTypeCode of dlpack.h.
enum class DLPackCode : std::uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBrainFloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8E3M4 = 7,
  kFloat8E4M3 = 8,
  kFloat8E4M3B11FNUZ = 9,
  kFloat8E4M3FN = 10,
  kFloat8E4M3FNUZ = 11,
  kFloat8E5M2 = 12,
  kFloat8E5M2FNUZ = 13,
  kFloat8E8M0FNU = 14,
};

inline constexpr int kNcclLacks = -1;

// Enumerator; name, as NumPy, or else ml_dtypes, has it; bytes; kind; whether it is narrower than float32, in which it
// is computed with; DLDataTypeCode; TF_DataType; ncclDataType_t, of a complex type that of its parts. The order is part
// of the wire format: new ones go to the end.
// clang-format off
#define COLLECTIVES_DTYPES(X) \
  X(kFloat16,      "float16",       2,  kReal,     true,  kFloat,        19, 6) \
  X(kBFloat16,     "bfloat16",      2,  kReal,     true,  kBrainFloat,   14, 9) \
  X(kFloat32,      "float32",       4,  kReal,     false, kFloat,        1,  7) \
  X(kFloat64,      "float64",       8,  kReal,     false, kFloat,        2,  8) \
  X(kInt8,         "int8",          1,  kSigned,   false, kInt,          6,  0) \
  X(kInt16,        "int16",         2,  kSigned,   false, kInt,          5,  kNcclLacks) \
  X(kInt32,        "int32",         4,  kSigned,   false, kInt,          3,  2) \
  X(kInt64,        "int64",         8,  kSigned,   false, kInt,          9,  4) \
  X(kUInt8,        "uint8",         1,  kUnsigned, false, kUInt,         4,  1) \
  X(kUInt16,       "uint16",        2,  kUnsigned, false, kUInt,         17, kNcclLacks) \
  X(kUInt32,       "uint32",        4,  kUnsigned, false, kUInt,         22, 3) \
  X(kUInt64,       "uint64",        8,  kUnsigned, false, kUInt,         23, 5) \
  X(kBool,         "bool",          1,  kBool,     false, kBool,         10, 1) \
  X(kComplex64,    "complex64",     8,  kComplex,  false, kComplex,      8,  7) \
  X(kComplex128,   "complex128",    16, kComplex,  false, kComplex,      18, 8) \
  X(kFloat8E4M3FN, "float8_e4m3fn", 1,  kReal,     true,  kFloat8E4M3FN, 25, 10) \
  X(kFloat8E5M2,   "float8_e5m2",   1,  kReal,     true,  kFloat8E5M2,   24, 11) \
  /* New rows above. */
// clang-format on

enum class DType : std::uint8_t {
#define COLLECTIVES_ENUMERATOR(enumerator, ...) enumerator,
  COLLECTIVES_DTYPES(COLLECTIVES_ENUMERATOR)
#undef COLLECTIVES_ENUMERATOR
};

struct DTypeFacts {
  std::string_view name;
  std::size_t bytes;
  DTypeKind kind;
  bool narrow;
  DLPackCode dlpack;
  int tensorflow;
  int nccl;
};

// In the order of the enumerators.
inline constexpr std::array kDTypeFacts = {
#define COLLECTIVES_FACTS(enumerator, name, bytes, kind, narrow, dlpack, tensorflow, nccl) \
  DTypeFacts{name, bytes, DTypeKind::kind, narrow, DLPackCode::dlpack, tensorflow, nccl},
    COLLECTIVES_DTYPES(COLLECTIVES_FACTS)
#undef COLLECTIVES_FACTS
};
inline constexpr int kDTypes = static_cast<int>(kDTypeFacts.size());

constexpr const DTypeFacts& facts(DType dtype) { return kDTypeFacts[static_cast<std::size_t>(dtype)]; }

}  // namespace collectives
