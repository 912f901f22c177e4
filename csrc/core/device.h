// What the engine asks of GPUs, as a table of functions with a C ABI: the engine is built without CUDA, and finds the
// table in libcollectives_cuda.so when device memory is first used. Tests put one of their own in its place.
//
// Functions return kDeviceOk, kDeviceNotReady, or a code of the library that implements them, for which error_name and
// error_text have words. None of them waits for a device, but for `release`. Handles of streams and
// events are those of the CUDA runtime (cudaStream_t, cudaEvent_t), so streams of other libraries can be passed.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace collectives {

// In which order the n values of an element are combined. It decides the rounding; never the number of threads.
enum class Combination : std::uint8_t {
  kCanonical,  // the tree of reduce/reducer.h over replicas 0 to n-1
  kHalves,     // the first ceil(n/2) replicas by that tree, the others by that tree, then the two results
  kChain,      // one replica after another, starting at `first`: as in a ring
};

inline constexpr int kDeviceOk = 0;
inline constexpr int kDeviceNotReady = -1;
// The most sources and destinations of one reduction. (Kernel arguments are limited to 4 KiB.)
inline constexpr int kMostDeviceOperands = 64;
inline constexpr int kDeviceHandleBytes = 64;

// destinations[d][i] = combine(sources[0][i], ..., sources[n-1][i]) for 0 <= i < count and every d, with the same bits
// as reduce_replicas() gives for arrays in host memory: 16- and 8-bit floats are computed with as float32, and rounded
// where that function rounds them. A destination may be one of the sources (the very same pointer); otherwise nothing
// overlaps.
struct DeviceReduction {
  DType dtype;
  Op op;  // kPremulSum: `operand` scales the one source
  Combination combination;
  bool finish;  // kAvg: divide by `operand`
  int first;    // kChain: the source to start with
  int source_count;
  int destination_count;
  const void* sources[kMostDeviceOperands];
  void* destinations[kMostDeviceOperands];
  std::int64_t count;  // elements
  double operand;
};

// Memory of another process: the allocation, and the place in it.
struct DeviceMemoryHandle {
  unsigned char allocation[kDeviceHandleBytes];
  std::int64_t offset;
};
struct DeviceEventHandle {
  unsigned char bytes[kDeviceHandleBytes];
};

struct DeviceApi {
  int version;  // kDeviceApiVersion

  const char* (*error_name)(int code);
  const char* (*error_text)(int code);

  // 0 devices and a code where there is no driver.
  int (*device_count)(int* count);
  int (*device_name)(int device, char* name, int bytes);
  // Like "0000:1b:00.0": the same for the same device in all processes, which may number their devices differently.
  int (*device_bus_id)(int device, char* id, int bytes);
  // Of the driver and of the runtime, as 13000 for 13.0.
  int (*versions)(int* driver, int* runtime);
  // Of the calling thread; -1 when it has chosen none that the process uses: then there is nothing to go back to.
  int (*get_device)(int* device);
  int (*set_device)(int device);
  // The device whose memory it is; -1 for memory of the host, pinned or not.
  int (*pointer_device)(const void* pointer, int* device);
  // *yes: kernels on `device` can read and write memory of `peer`; from then on they may.
  int (*enable_peer)(int device, int peer, int* yes);

  int (*stream_create)(int device, void** stream);
  int (*stream_destroy)(void* stream);
  // *yes: what is put into the stream is recorded into a graph. Then nothing may ask whether work is done.
  int (*stream_capturing)(void* stream, int* yes);
  // shared: for other processes too.
  int (*event_create)(int device, bool shared, void** event);
  int (*event_destroy)(void* event);
  int (*event_record)(void* event, void* stream);
  int (*event_query)(void* event);  // kDeviceNotReady while what was recorded is not done
  int (*stream_wait)(void* stream, void* event);

  int (*allocate)(int device, std::int64_t bytes, void** memory);
  int (*release)(void* memory);
  // Memory of the host that devices copy from and to without a copy in between.
  int (*allocate_pinned)(std::int64_t bytes, void** memory);
  int (*release_pinned)(void* memory);

  // From and to any memory, in the order of the stream.
  int (*copy)(void* destination, const void* source, std::int64_t bytes, void* stream);
  // The device of the stream is the current one.
  int (*reduce)(const DeviceReduction* reduction, void* stream);

  int (*export_memory)(void* memory, DeviceMemoryHandle* handle);
  // `base` is what close_memory takes; the memory is at base + handle->offset. Once per allocation and process.
  int (*open_memory)(const DeviceMemoryHandle* handle, int device, void** base);
  int (*close_memory)(void* base);
  int (*export_event)(void* event, DeviceEventHandle* handle);
  int (*open_event)(const DeviceEventHandle* handle, int device, void** event);
};

inline constexpr int kDeviceApiVersion = 1;
// The one symbol of the library: `const collectives::DeviceApi* collectives_device_api(int version)`; nullptr when it
// has no table of that version.
inline constexpr const char* kDeviceApiSymbol = "collectives_device_api";
using DeviceApiFunction = const DeviceApi* (*)(int version);

}  // namespace collectives
