// The parts of DLPack 1.2 (dlpack.h) that are needed, with its layouts and shorter names.
#pragma once

#include <cstdint>

namespace collectives {

struct DlTensor {
  void* data;
  std::int32_t device_type;
  std::int32_t device;
  std::int32_t dimensions;
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; nullptr: C order
  std::uint64_t offset;   // bytes
};
inline constexpr std::int32_t kDlCpu = 1;
inline constexpr std::int32_t kDlCuda = 2;

struct DlManaged {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManaged*);
};

struct DlVersioned {
  std::uint32_t major;
  std::uint32_t minor;
  void* context;
  void (*deleter)(DlVersioned*);
  std::uint64_t flags;
  DlTensor tensor;
};

// DLPackExchangeAPI: the type of a library's arrays has it as `__dlpack_c_exchange_api__`, a capsule named
// "dlpack_exchange_api". It lives as long as the process. A function that does not return 0 has set a Python error.
struct DlExchange {
  std::uint32_t major;
  std::uint32_t minor;
  DlExchange* previous;  // the table of an older version
  int (*allocate)(DlTensor* like, DlVersioned** made, void* context,
                  void (*set_error)(void* context, const char* kind, const char* text));
  int (*from_object)(void* object, DlVersioned** made);
  int (*to_object)(DlVersioned* given, void** object);  // the object takes ownership of `given`
  int (*view)(void* object, DlTensor* tensor);          // keeps nothing alive; may be nullptr
  int (*stream)(std::int32_t device_type, std::int32_t device, void** current);
};

inline bool in_c_order(const DlTensor& tensor) {
  bool contiguous = true;
  bool empty = false;
  std::int64_t expected = 1;
  for (std::int32_t d = tensor.dimensions; d-- > 0;) {
    const std::int64_t length = tensor.shape[d];
    contiguous = contiguous && (tensor.strides == nullptr || length == 1 || tensor.strides[d] == expected);
    expected *= length;
    empty = empty || length == 0;
  }
  return contiguous || empty;
}

}  // namespace collectives
