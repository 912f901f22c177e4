// The table of functions.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fake.h"

namespace fake {
namespace {

using namespace collectives;

constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidHandle = 400;

thread_local int t_device = 0;

// Begins every function that can fail.
#define FAKE_ENTER(function)                                 \
  const Lock lock(state().mutex);                            \
  if (const int code = enter(function); code != kDeviceOk) { \
    return code;                                             \
  }

const char* error_name(int code) {
  switch (code) {
    case kInvalidValue:
      return "cudaErrorInvalidValue";
    case kOutOfMemory:
      return "cudaErrorMemoryAllocation";
    case 35:
      return "cudaErrorInsufficientDriver";
    case 100:
      return "cudaErrorNoDevice";
    case kInvalidHandle:
      return "cudaErrorInvalidResourceHandle";
    case 700:
      return "cudaErrorIllegalAddress";
    default:
      return "cudaErrorUnknown";
  }
}

const char* error_text(int code) { return code == kOutOfMemory ? "out of memory" : "made up by a test"; }

int device_count(int* count) {
  FAKE_ENTER("device_count");
  if (const char* text = std::getenv("FAKE_DEVICE_CODE")) {
    return std::atoi(text);
  }
  *count = state().devices;
  return kDeviceOk;
}

bool exists(int device, const char* what) {
  if (device >= 0 && device < state().devices) {
    return true;
  }
  error(std::string(what) + ": there is no device " + std::to_string(device));
  return false;
}

int device_name(int device, char* name, int bytes) {
  FAKE_ENTER("device_name");
  std::snprintf(name, static_cast<std::size_t>(bytes), "Fake %d", device);
  return kDeviceOk;
}

int device_bus_id(int device, char* id, int bytes) {
  FAKE_ENTER("device_bus_id");
  std::snprintf(id, static_cast<std::size_t>(bytes), "0000:%02x:00.0", device);
  return kDeviceOk;
}

int versions(int* driver, int* runtime) {
  FAKE_ENTER("versions");
  *driver = *runtime = 13000;
  return kDeviceOk;
}

int get_device(int* device) {
  FAKE_ENTER("get_device");
  *device = t_device;
  return kDeviceOk;
}

int set_device(int device) {
  FAKE_ENTER("set_device");
  if (!exists(device, "set_device")) {
    return kInvalidValue;
  }
  t_device = device;
  return kDeviceOk;
}

int pointer_device(const void* pointer, int* device) {
  FAKE_ENTER("pointer_device");
  State& s = state();
  *device = -1;
  auto at = s.blocks.upper_bound(reinterpret_cast<std::uintptr_t>(pointer));
  if (at != s.blocks.begin()) {
    --at;
    const Block& block = at->second;
    if (static_cast<const std::byte*>(pointer) - block.begin < std::max<std::int64_t>(block.size, 1)) {
      *device = block.device;
    }
  }
  return kDeviceOk;
}

int enable_peer(int device, int peer, int* yes) {
  FAKE_ENTER("enable_peer");
  if (!exists(device, "enable_peer") || !exists(peer, "enable_peer")) {
    return kInvalidValue;
  }
  *yes = device == peer || state().peers ? 1 : 0;
  if (*yes != 0) {
    state().enabled.insert({device, peer});
  }
  return kDeviceOk;
}

}  // namespace

void* new_block(int device, std::int64_t bytes, bool of_test) {
  Block block;
  const auto room = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  block.bytes = std::make_unique<std::byte[]>(room + 256);
  // Allocations of devices are aligned to 256 bytes.
  const std::uintptr_t shift = (256 - reinterpret_cast<std::uintptr_t>(block.bytes.get()) % 256) % 256;
  std::byte* const begin = block.bytes.get() + shift;
  std::memset(begin, 0xcb, room);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  block.size = bytes;
  block.device = device;
  block.of_test = of_test;
  block.begin = begin;
  block.cells.emplace(0, Cell());
  state().blocks.emplace(address, std::move(block));
  return begin;
}

std::shared_ptr<Stream> new_stream(int device, bool of_test) {
  State& s = state();
  auto stream = std::make_shared<Stream>();
  stream->number = static_cast<int>(s.streams.size());
  stream->device = device;
  stream->of_test = of_test;
  s.streams.push_back(stream);
  return stream;
}

std::shared_ptr<Stream> stream_of(void* handle, const char* what) {
  State& s = state();
  const auto value = reinterpret_cast<std::uintptr_t>(handle);
  if (value <= 2) {  // 0 and 1: the legacy stream, 2: that of the thread
    auto& stream = s.special[{t_device, value == 2 ? 2 : 1}];
    if (stream == nullptr) {
      stream = new_stream(t_device, true);
    }
    return stream;
  }
  for (const auto& stream : s.streams) {
    if (stream.get() == handle) {
      if (stream->destroyed) {
        error(std::string(what) + ": the stream was destroyed");
        return nullptr;
      }
      return stream;
    }
  }
  error(std::string(what) + ": not a stream");
  return nullptr;
}

namespace {

int stream_create(int device, void** stream) {
  FAKE_ENTER("stream_create");
  if (!exists(device, "stream_create")) {
    return kInvalidValue;
  }
  *stream = new_stream(device, false).get();
  return kDeviceOk;
}

int stream_destroy(void* stream) {
  FAKE_ENTER("stream_destroy");
  const auto found = stream_of(stream, "stream_destroy");
  if (found == nullptr) {
    return kInvalidHandle;
  }
  found->destroyed = true;
  return kDeviceOk;
}

int stream_capturing(void* stream, int* yes) {
  FAKE_ENTER("stream_capturing");
  const auto found = stream_of(stream, "stream_capturing");
  if (found == nullptr) {
    return kInvalidHandle;
  }
  *yes = found->capturing ? 1 : 0;
  return kDeviceOk;
}

bool capturing() {
  return std::any_of(state().streams.begin(), state().streams.end(), [](const auto& s) { return s->capturing; });
}

void forbid_in_capture(const char* what) {
  if (capturing()) {
    error(std::string(what) + " while a stream is recorded into a graph");
  }
}

int event_create(int device, bool shared, void** event) {
  FAKE_ENTER("event_create");
  if (!exists(device, "event_create")) {
    return kInvalidValue;
  }
  auto made = std::make_shared<Event>();
  made->device = device;
  made->shared = shared;
  *event = made.get();
  state().events.emplace(made.get(), made);
  return kDeviceOk;
}

std::shared_ptr<Event> event_of(void* handle, const char* what) {
  const auto found = state().events.find(handle);
  if (found == state().events.end() || found->second->destroyed) {
    error(std::string(what) + ": not an event, or one that was destroyed");
    return nullptr;
  }
  return found->second;
}

int event_destroy(void* event) {
  FAKE_ENTER("event_destroy");
  const auto found = event_of(event, "event_destroy");
  if (found == nullptr) {
    return kInvalidHandle;
  }
  found->destroyed = true;
  return kDeviceOk;
}

int event_record(void* event, void* stream) {
  FAKE_ENTER("event_record");
  const auto recorded = event_of(event, "event_record");
  const auto into = stream_of(stream, "event_record");
  if (recorded == nullptr || into == nullptr) {
    return kInvalidHandle;
  }
  if (recorded->device != into->device) {
    error("event_record: an event of device " + std::to_string(recorded->device) + " in a stream of device " +
          std::to_string(into->device));
    return kInvalidHandle;
  }
  const std::int64_t version = ++recorded->version;
  recorded->pending.insert(version);
  recorded->captured = into->capturing;
  merge(into->clock, state().host);
  recorded->clock = into->clock;
  into->queue.push_back({[recorded, version] { recorded->pending.erase(version); }, nullptr, 0});
  return kDeviceOk;
}

int event_query(void* event) {
  FAKE_ENTER("event_query");
  const auto asked = event_of(event, "event_query");
  if (asked == nullptr) {
    return kInvalidHandle;
  }
  forbid_in_capture("event_query");
  for (unsigned some = state().random() % 4; some > 0 && run_one(); --some) {
  }
  if (asked->pending.contains(asked->version)) {
    return kDeviceNotReady;
  }
  merge(state().host, asked->clock);
  return kDeviceOk;
}

int stream_wait(void* stream, void* event) {
  FAKE_ENTER("stream_wait");
  const auto waits = stream_of(stream, "stream_wait");
  const auto awaited = event_of(event, "stream_wait");
  if (waits == nullptr || awaited == nullptr) {
    return kInvalidHandle;
  }
  if (awaited->version == 0) {
    error("stream_wait: an event that was never recorded");
    return kDeviceOk;
  }
  if (waits->capturing && !awaited->captured) {
    error("stream_wait: a stream that is recorded into a graph waits for work outside of it");
  }
  waits->capturing = waits->capturing || awaited->captured;
  merge(waits->clock, awaited->clock);
  waits->queue.push_back({nullptr, awaited, awaited->version});
  return kDeviceOk;
}

int allocate(int device, std::int64_t bytes, void** memory) {
  FAKE_ENTER("allocate");
  forbid_in_capture("allocate");
  if (!exists(device, "allocate") || bytes <= 0) {
    return kInvalidValue;
  }
  *memory = new_block(device, bytes, false);
  return kDeviceOk;
}

int allocate_pinned(std::int64_t bytes, void** memory) {
  FAKE_ENTER("allocate_pinned");
  forbid_in_capture("allocate_pinned");
  *memory = new_block(-1, bytes, false);
  return kDeviceOk;
}

int give_up(void* memory, bool pinned, const char* what) {
  forbid_in_capture(what);
  const auto found = state().blocks.find(reinterpret_cast<std::uintptr_t>(memory));
  if (found == state().blocks.end() || found->second.released || (found->second.device < 0) != pinned) {
    error(std::string(what) + ": not such memory, or released before");
    return kInvalidValue;
  }
  run_all();
  for (const auto& stream : state().streams) {
    merge(state().host, stream->clock);
  }
  found->second.released = true;
  std::memset(memory, 0xdd, static_cast<std::size_t>(found->second.size));
  return kDeviceOk;
}

int release(void* memory) {
  FAKE_ENTER("release");
  return give_up(memory, false, "release");
}

int release_pinned(void* memory) {
  FAKE_ENTER("release_pinned");
  return give_up(memory, true, "release_pinned");
}

int copy(void* destination, const void* source, std::int64_t bytes, void* stream) {
  FAKE_ENTER("copy");
  const auto into = stream_of(stream, "copy");
  if (into == nullptr) {
    return kInvalidHandle;
  }
  enqueue(*into, "copy of " + std::to_string(bytes) + " bytes", {{source, bytes, false}, {destination, bytes, true}},
          [=] { std::memmove(destination, source, static_cast<std::size_t>(bytes)); });
  return kDeviceOk;
}

int reduce(const DeviceReduction* reduction, void* stream) {
  FAKE_ENTER("reduce");
  const auto into = stream_of(stream, "reduce");
  if (into == nullptr) {
    return kInvalidHandle;
  }
  const DeviceReduction& r = *reduction;
  const std::string text = "reduction of " + std::to_string(r.count) + " elements";
  if (into->device != t_device) {
    error(text + ": the stream is of device " + std::to_string(into->device) + ", the current device is " +
          std::to_string(t_device));
  }
  if (r.source_count < 1 || r.source_count > kMostDeviceOperands || r.destination_count < 1 ||
      r.destination_count > kMostDeviceOperands || r.count < 1 || r.first < 0 || r.first >= r.source_count) {
    error(text + ": wrong numbers");
    return kInvalidValue;
  }
  const auto bytes = r.count * static_cast<std::int64_t>(size_of(r.dtype));
  std::vector<Touched> touched;
  const auto add = [&](const void* pointer, bool writes) {
    if (reinterpret_cast<std::uintptr_t>(pointer) % size_of(r.dtype) != 0) {
      error(text + ": memory that is not aligned to its elements");
    }
    const Block* block = block_of(pointer, bytes, text);
    if (block != nullptr && block->device >= 0 && block->device != into->device &&
        !state().enabled.contains({into->device, block->device})) {
      error(text + ": a kernel of device " + std::to_string(into->device) + " cannot access memory of device " +
            std::to_string(block->device));
    }
    touched.push_back({pointer, bytes, writes});
  };
  for (int i = 0; i < r.source_count; ++i) {
    add(r.sources[i], false);
  }
  for (int d = 0; d < r.destination_count; ++d) {
    add(r.destinations[d], true);
    const auto begin = reinterpret_cast<std::uintptr_t>(r.destinations[d]);
    for (const Touched& other : touched) {
      const auto at = reinterpret_cast<std::uintptr_t>(other.pointer);
      const bool same = at == begin && !other.writes;
      const bool itself = &other == &touched.back();
      if (!same && !itself && at < begin + static_cast<std::uintptr_t>(bytes) &&
          begin < at + static_cast<std::uintptr_t>(bytes)) {
        error(text + ": a destination overlaps another operand");
      }
    }
  }
  enqueue(*into, text, touched, [r] { compute(r); });
  return kDeviceOk;
}

int no_handles() {
  FAKE_ENTER("other processes");
  return 801;  // not supported
}

const DeviceApi kTable = {
    kDeviceApiVersion,
    error_name,
    error_text,
    device_count,
    device_name,
    device_bus_id,
    versions,
    get_device,
    set_device,
    pointer_device,
    enable_peer,
    stream_create,
    stream_destroy,
    stream_capturing,
    event_create,
    event_destroy,
    event_record,
    event_query,
    stream_wait,
    allocate,
    release,
    allocate_pinned,
    release_pinned,
    copy,
    reduce,
    [](void* /*memory*/, DeviceMemoryHandle* /*handle*/) { return no_handles(); },
    [](const DeviceMemoryHandle* /*handle*/, int /*device*/, void** /*base*/) { return no_handles(); },
    [](void* /*base*/) { return no_handles(); },
    [](void* /*event*/, DeviceEventHandle* /*handle*/) { return no_handles(); },
    [](const DeviceEventHandle* /*handle*/, int /*device*/, void** /*event*/) { return no_handles(); },
};

}  // namespace
}  // namespace fake

using namespace fake;

extern "C" {

const collectives::DeviceApi* collectives_device_api(int version) {
  const char* other = std::getenv("FAKE_VERSION");
  return version == (other == nullptr ? collectives::kDeviceApiVersion : std::atoi(other)) ? &kTable : nullptr;
}
}
