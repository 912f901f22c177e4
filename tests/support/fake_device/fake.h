// A library with the functions of csrc/core/device.h, without a device: the memory of its devices is memory of the
// host, and what is put into a stream runs late, in a random order that keeps to the order of streams and events alone.
// So work that is not ordered gives wrong results; besides, vector clocks find every pair of accesses that nothing
// orders.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/device.h"

namespace fake {

// How much of the work of each stream happened before; by number of stream.
using Clock = std::vector<std::int64_t>;

struct Event {
  int device = 0;
  bool shared = false;
  bool destroyed = false;
  bool captured = false;
  std::int64_t version = 0;        // how often it was recorded
  std::set<std::int64_t> pending;  // versions that have not happened yet
  Clock clock;                     // of the latest
};

struct Operation {
  std::function<void()> run;     // nothing for waits
  std::shared_ptr<Event> event;  // of a wait
  std::int64_t version = 0;      // of that event
};

struct Stream {
  int number = 0;
  int device = 0;
  bool capturing = false;
  bool destroyed = false;
  bool of_test = false;
  Clock clock;
  std::deque<Operation> queue;
};

struct Access {
  int stream = -1;
  std::int64_t tick = 0;
  int operation = -1;  // its text is in State::texts
};

struct Cell {
  Access write;
  std::vector<Access> reads;  // the latest of each stream
};

struct Block {
  std::unique_ptr<std::byte[]> bytes;
  std::byte* begin = nullptr;  // in `bytes`, aligned as devices align
  std::int64_t size = 0;
  int device = -1;  // -1: pinned memory of the host
  bool released = false;
  bool of_test = false;
  std::map<std::int64_t, Cell> cells;  // each reaches to the next
};

struct State {
  State();
  std::recursive_mutex mutex;
  int devices = 2;
  bool peers = true;  // whether devices can access each other's memory
  std::set<std::pair<int, int>> enabled;
  std::mt19937 random;
  Clock host;  // what the host has seen the end of: it comes before all that is put into a stream from then on
  std::map<std::uintptr_t, Block> blocks;  // by address
  std::vector<std::shared_ptr<Stream>> streams;
  std::map<std::pair<int, int>, std::shared_ptr<Stream>> special;  // (device, handle): those that are always there
  std::map<void*, std::shared_ptr<Event>> events;
  std::vector<std::string> texts;
  std::vector<std::string> errors;
  std::map<std::string, std::int64_t> calls;
  std::int64_t all_calls = 0;
  std::string fail_function;  // empty: any
  std::int64_t fail_at = 0;   // 0: never; else counted down
  int fail_code = 0;
};

State& state();
using Lock = std::lock_guard<std::recursive_mutex>;

void error(const std::string& text);

// The block of an address, with an error that names `what` where the range is not inside one that is in use.
Block* block_of(const void* pointer, std::int64_t bytes, const std::string& what);

// `of_test`: it belongs to the test, and does not count as what the library holds.
void* new_block(int device, std::int64_t bytes, bool of_test);
std::shared_ptr<Stream> new_stream(int device, bool of_test);

// The stream of a handle, with an error where there is none.
std::shared_ptr<Stream> stream_of(void* handle, const char* what);

void merge(Clock& into, const Clock& other);

// Puts an operation into a stream that reads and writes these ranges, and complains of what does not come before.
struct Touched {
  const void* pointer;
  std::int64_t bytes;
  bool writes;
};
void enqueue(Stream& stream, const std::string& text, const std::vector<Touched>& touched, std::function<void()> run);

// Runs one operation of a random stream; false when there is none.
bool run_one();
void run_all();

// Whether a function that is called now shall fail; its code then.
int enter(const char* function);

void compute(const collectives::DeviceReduction& reduction);

}  // namespace fake
