// Streams, and who has touched which bytes.
#include <algorithm>
#include <cstdlib>

#include "fake.h"

namespace fake {
namespace {

int number_from(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

// Makes a cell begin at `at`.
void split(Block& block, std::int64_t at) {
  if (at >= block.size) {
    return;
  }
  auto next = block.cells.upper_bound(at);
  const auto cell = std::prev(next);
  if (cell->first != at) {
    block.cells.emplace_hint(next, at, Cell(cell->second));
  }
}

bool before(const Access& access, const Stream& stream) {
  return access.stream < 0 || (static_cast<std::size_t>(access.stream) < stream.clock.size() &&
                               stream.clock[static_cast<std::size_t>(access.stream)] >= access.tick);
}

void complain(const Access& earlier, const char* how, int operation) {
  State& s = state();
  error("not ordered: " + s.texts[static_cast<std::size_t>(operation)] + " " + how + " " +
        s.texts[static_cast<std::size_t>(earlier.operation)]);
}

void touch(const Stream& stream, Block& block, std::int64_t begin, const Touched& range, int operation) {
  const std::int64_t end = begin + range.bytes;
  split(block, begin);
  split(block, end);
  const Access now{stream.number, stream.clock[static_cast<std::size_t>(stream.number)], operation};
  bool complained = false;
  for (auto at = block.cells.find(begin); at != block.cells.end() && at->first < end; ++at) {
    Cell& cell = at->second;
    if (!complained && !before(cell.write, stream)) {
      complain(cell.write, range.writes ? "overwrites the result of" : "reads the result of", operation);
      complained = true;
    }
    if (range.writes) {
      for (const Access& read : cell.reads) {
        if (!complained && !before(read, stream)) {
          complain(read, "overwrites what is read by", operation);
          complained = true;
        }
      }
      cell.write = now;
      cell.reads.clear();
    } else {
      std::erase_if(cell.reads, [&](const Access& read) { return read.stream == stream.number; });
      cell.reads.push_back(now);
    }
  }
}

bool runnable(const Stream& stream) {
  if (stream.queue.empty()) {
    return false;
  }
  const Operation& head = stream.queue.front();
  return head.event == nullptr || !head.event->pending.contains(head.version);
}

}  // namespace

State::State()
    : devices(number_from("FAKE_DEVICES", 2)),
      peers(number_from("FAKE_PEERS", 1) != 0),
      random(static_cast<unsigned>(number_from("FAKE_SEED", 1))) {}

State& state() {
  static State* const all = new State();  // never destroyed: streams are used until the process ends
  return *all;
}

void error(const std::string& text) { state().errors.push_back(text); }

Block* block_of(const void* pointer, std::int64_t bytes, const std::string& what) {
  State& s = state();
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  auto at = s.blocks.upper_bound(address);
  if (at == s.blocks.begin()) {
    error(what + ": memory that no device has");
    return nullptr;
  }
  --at;
  Block& block = at->second;
  const auto offset = static_cast<std::int64_t>(address - at->first);
  if (offset + bytes > block.size) {
    error(what + ": " + std::to_string(bytes) + " bytes at " + std::to_string(offset) + " of memory of " +
          std::to_string(block.size) + " bytes, or memory that no device has");
    return nullptr;
  }
  if (block.released) {
    error(what + ": memory that was released");
    return nullptr;
  }
  return &block;
}

void merge(Clock& into, const Clock& other) {
  into.resize(std::max(into.size(), other.size()), 0);
  for (std::size_t i = 0; i < other.size(); ++i) {
    into[i] = std::max(into[i], other[i]);
  }
}

void enqueue(Stream& stream, const std::string& text, const std::vector<Touched>& touched, std::function<void()> run) {
  State& s = state();
  const auto self = static_cast<std::size_t>(stream.number);
  merge(stream.clock, s.host);
  if (stream.clock.size() <= self) {
    stream.clock.resize(self + 1, 0);
  }
  ++stream.clock[self];
  const int operation = static_cast<int>(s.texts.size());
  s.texts.push_back(text + " in stream " + std::to_string(stream.number) + " of device " +
                    std::to_string(stream.device));
  bool good = true;
  for (const bool writes : {false, true}) {
    for (const Touched& range : touched) {
      if (range.writes != writes || range.bytes == 0) {
        continue;
      }
      Block* const block = block_of(range.pointer, range.bytes, s.texts.back());
      good = good && block != nullptr;
      if (block != nullptr) {
        touch(stream, *block, static_cast<const std::byte*>(range.pointer) - block->begin, range, operation);
      }
    }
  }
  stream.queue.push_back({good ? std::move(run) : [] {}, nullptr, 0});
}

bool run_one() {
  State& s = state();
  std::vector<Stream*> ready;
  for (const auto& stream : s.streams) {
    if (runnable(*stream)) {
      ready.push_back(stream.get());
    }
  }
  if (ready.empty()) {
    return false;
  }
  Stream& chosen = *ready[s.random() % ready.size()];
  const Operation operation = std::move(chosen.queue.front());
  chosen.queue.pop_front();
  if (operation.run) {
    operation.run();
  }
  return true;
}

void run_all() {
  while (run_one()) {
  }
}

int enter(const char* function) {
  State& s = state();
  ++s.calls[function];
  ++s.all_calls;
  if (s.fail_at > 0 && (s.fail_function.empty() || s.fail_function == function) && --s.fail_at == 0) {
    return s.fail_code;
  }
  return collectives::kDeviceOk;
}

}  // namespace fake
