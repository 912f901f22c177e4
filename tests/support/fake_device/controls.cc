// What the tests ask of the fake.
#include <algorithm>
#include <cstring>

#include "fake.h"

using namespace fake;

extern "C" {

// What belongs to the test is not counted as what the library holds, and cannot fail.
void* fake_allocate(int device, std::int64_t bytes) {
  const Lock lock(state().mutex);
  return new_block(device, bytes, true);
}

void fake_release(void* memory) {
  const Lock lock(state().mutex);
  run_all();
  state().blocks.erase(reinterpret_cast<std::uintptr_t>(memory));
}

void* fake_stream(int device) {
  const Lock lock(state().mutex);
  return new_stream(device, true).get();
}

// Work of the caller: fills memory from `bytes` bytes of the host, which are read now.
void fake_produce(void* memory, const void* from, std::int64_t bytes, void* stream) {
  const Lock lock(state().mutex);
  const auto into = stream_of(stream, "fake_produce");
  const auto* begin = static_cast<const std::byte*>(from);
  std::vector<std::byte> values(begin, begin + bytes);
  enqueue(*into, "the caller's write of " + std::to_string(bytes) + " bytes", {{memory, bytes, true}},
          [=] { std::memcpy(memory, values.data(), values.size()); });
}

// The same, the other way round: `to` holds the values after fake_finish().
void fake_consume(void* to, const void* memory, std::int64_t bytes, void* stream) {
  const Lock lock(state().mutex);
  const auto into = stream_of(stream, "fake_consume");
  enqueue(*into, "the caller's read of " + std::to_string(bytes) + " bytes", {{memory, bytes, false}},
          [=] { std::memcpy(to, memory, static_cast<std::size_t>(bytes)); });
}

// Finishes all work; what comes later is ordered behind it, as after a synchronisation of all devices.
void fake_finish() {
  const Lock lock(state().mutex);
  run_all();
  for (const auto& stream : state().streams) {
    if (!stream->queue.empty()) {
      error("stream " + std::to_string(stream->number) + " waits for ever");
    }
  }
  for (auto& [address, block] : state().blocks) {
    block.cells.clear();
    block.cells.emplace(0, Cell());
  }
  state().texts.clear();
}

void fake_capture(void* stream, int yes) {
  const Lock lock(state().mutex);
  if (yes != 0) {
    stream_of(stream, "fake_capture")->capturing = true;
    return;
  }
  for (const auto& other : state().streams) {
    other->capturing = false;
  }
}

void fake_seed(unsigned seed) {
  const Lock lock(state().mutex);
  state().random.seed(seed);
}

// The k-th call from now of this function, or of any when the name is empty, returns `code`.
void fake_fail(const char* function, std::int64_t k, int code) {
  const Lock lock(state().mutex);
  state().fail_function = function;
  state().fail_at = k;
  state().fail_code = code;
}

// How often a function was called; of all when the name is empty.
std::int64_t fake_calls(const char* function) {
  const Lock lock(state().mutex);
  return *function == '\0' ? state().all_calls : state().calls[function];
}

// What the library holds: "memory", "pinned", "streams", "events".
std::int64_t fake_live(const char* kind) {
  const Lock lock(state().mutex);
  const std::string what = kind;
  State& s = state();
  if (what == "streams") {
    return std::count_if(s.streams.begin(), s.streams.end(),
                         [](const auto& stream) { return !stream->destroyed && !stream->of_test; });
  }
  if (what == "events") {
    return std::count_if(s.events.begin(), s.events.end(), [](const auto& event) { return !event.second->destroyed; });
  }
  return std::count_if(s.blocks.begin(), s.blocks.end(), [&](const auto& entry) {
    const Block& block = entry.second;
    return !block.released && !block.of_test && (block.device < 0) == (what == "pinned");
  });
}

// Operations that have not run yet.
std::int64_t fake_pending() {
  const Lock lock(state().mutex);
  std::int64_t pending = 0;
  for (const auto& stream : state().streams) {
    pending += static_cast<std::int64_t>(stream->queue.size());
  }
  return pending;
}

// All errors, a line each, and forgets them.
const char* fake_errors() {
  const Lock lock(state().mutex);
  static std::string text;
  text.clear();
  for (const std::string& one : state().errors) {
    text += one + "\n";
  }
  state().errors.clear();
  return text.c_str();
}
}
