// What the operations do with the bytes.

#include <unistd.h>

#include <cstring>
#include <set>

#include "fake.h"

namespace fake {

using namespace collectives;

namespace {

bool wait_for(const Comm& comm, const std::atomic<std::uint64_t>& counter, std::uint64_t least) {
  while (counter.load(std::memory_order_acquire) < least) {
    if (comm.aborted.load(std::memory_order_acquire)) {
      return false;
    }
    usleep(20);
  }
  return true;
}

float from_bfloat16(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

std::uint16_t to_bfloat16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

struct Bfloat16 {
  std::uint16_t bits;
  explicit operator double() const { return from_bfloat16(bits); }
  static Bfloat16 of(double value) { return {to_bfloat16(static_cast<float>(value))}; }
};

template <class T>
T narrow(double value) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    return Bfloat16::of(value);
  } else {
    return static_cast<T>(value);
  }
}

template <class T>
void combine(const Operation& operation, Comm& comm, std::size_t offset, std::size_t count, void* to) {
  for (std::size_t i = 0; i < count; ++i) {
    double total = 0;
    for (int r = 0; r < comm.size; ++r) {
      T value;
      std::memcpy(&value, comm.shared->slot(r) + (offset + i) * sizeof(T), sizeof(T));
      const auto x = static_cast<double>(value);
      const bool first = r == 0;
      switch (operation.op) {
        case kNcclProd:
          total = first ? x : total * x;
          break;
        case kNcclMax:
          total = first || x > total ? x : total;
          break;
        case kNcclMin:
          total = first || x < total ? x : total;
          break;
        default:
          total += x;
      }
    }
    const T result = narrow<T>(operation.op == kNcclAvg ? total / comm.size : total);
    std::memcpy(static_cast<std::byte*>(to) + i * sizeof(T), &result, sizeof(T));
  }
}

template <class T>
void scale(const Operation& operation, std::byte* values) {
  for (std::size_t i = 0; i < operation.count; ++i) {
    T value;
    std::memcpy(&value, values + i * sizeof(T), sizeof(T));
    value = narrow<T>(static_cast<double>(value) * operation.scale);
    std::memcpy(values + i * sizeof(T), &value, sizeof(T));
  }
}

template <class Function>
void with_type(NcclDataType type, Function function) {
  switch (type) {
    case kNcclInt8:
      return function(std::int8_t());
    case kNcclUint8:
      return function(std::uint8_t());
    case kNcclInt32:
      return function(std::int32_t());
    case kNcclUint32:
      return function(std::uint32_t());
    case kNcclInt64:
      return function(std::int64_t());
    case kNcclUint64:
      return function(std::uint64_t());
    case kNcclFloat16:
      return function(static_cast<_Float16>(0));
    case kNcclFloat32:
      return function(0.0F);
    case kNcclFloat64:
      return function(0.0);
    default:
      return function(Bfloat16{});
  }
}

// Each rank publishes what it gives, and takes what it gets when all have.
bool perform_collective(Comm& comm, const Operation& operation) {
  using Kind = Operation::Kind;
  Shared& shared = *comm.shared;
  const auto n = static_cast<std::size_t>(comm.size);
  const std::uint64_t number = ++comm.sequence;
  for (int r = 0; r < comm.size; ++r) {
    if (!wait_for(comm, shared.consumed[r], number - 1)) {
      return false;
    }
  }
  const bool scatters = operation.kind == Kind::kReduceScatter;
  const std::size_t bytes = operation.count * size_of(operation.type) * (scatters ? n : 1);
  std::byte* own = shared.slot(comm.rank);
  if (bytes > kSlot) {
    std::abort();
  }
  if (operation.kind != Kind::kBroadcast || operation.peer == comm.rank) {
    std::memcpy(own, operation.from, bytes);
    if (operation.scale != 1) {
      with_type(operation.type, [&](auto zero) { scale<decltype(zero)>(operation, own); });
    }
  }
  shared.published[comm.rank].store(number, std::memory_order_release);
  for (int r = 0; r < comm.size; ++r) {
    if (!wait_for(comm, shared.published[r], number)) {
      return false;
    }
  }
  if (operation.kind == Kind::kBroadcast) {
    std::memcpy(operation.to, shared.slot(operation.peer), bytes);
  } else if (operation.kind == Kind::kAllGather) {
    for (int r = 0; r < comm.size; ++r) {
      std::memcpy(static_cast<std::byte*>(operation.to) + static_cast<std::size_t>(r) * bytes, shared.slot(r), bytes);
    }
  } else if (operation.kind != Kind::kReduce || operation.peer == comm.rank) {
    const std::size_t offset = scatters ? static_cast<std::size_t>(comm.rank) * operation.count : 0;
    with_type(operation.type,
              [&](auto zero) { combine<decltype(zero)>(operation, comm, offset, operation.count, operation.to); });
  }
  shared.consumed[comm.rank].store(number, std::memory_order_release);
  return true;
}

// One step of a message; true when it is done.
bool step(Comm& comm, const Operation& operation) {
  Shared& shared = *comm.shared;
  const bool sends = operation.kind == Operation::Kind::kSend;
  const int from = sends ? comm.rank : operation.peer;
  const int to = sends ? operation.peer : comm.rank;
  const std::size_t bytes = operation.count * size_of(operation.type);
  if (bytes > kPair) {
    std::abort();
  }
  const std::uint64_t sent = shared.sent[from][to].load(std::memory_order_acquire);
  const std::uint64_t taken = shared.taken[from][to].load(std::memory_order_acquire);
  if (sends ? sent != taken : sent == taken) {
    return false;
  }
  if (sends) {
    std::memcpy(shared.pair(from, to), operation.from, bytes);
    shared.sent[from][to].store(sent + 1, std::memory_order_release);
  } else {
    std::memcpy(operation.to, shared.pair(from, to), bytes);
    shared.taken[from][to].store(taken + 1, std::memory_order_release);
  }
  return true;
}

// All at once; those of one direction between two ranks in their order.
bool perform_messages(Comm& comm, std::vector<Operation> left) {
  while (!left.empty()) {
    std::set<std::pair<bool, int>> blocked;
    std::vector<Operation> still;
    for (const Operation& operation : left) {
      const std::pair<bool, int> direction{operation.kind == Operation::Kind::kSend, operation.peer};
      if (blocked.count(direction) != 0 || !step(comm, operation)) {
        blocked.insert(direction);
        still.push_back(operation);
      }
    }
    left = still;
    if (comm.aborted.load(std::memory_order_acquire)) {
      return false;
    }
    usleep(20);
  }
  return true;
}

}  // namespace

std::size_t size_of(NcclDataType type) {
  constexpr std::size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return kSizes[type];
}

bool perform(Comm& comm, const std::vector<Operation>& group) {
  while (setting("stuck") != 0) {
    if (comm.aborted.load(std::memory_order_acquire)) {
      return false;
    }
    usleep(100);
  }
  std::vector<Operation> messages;
  for (const Operation& operation : group) {
    if (operation.is_message()) {
      messages.push_back(operation);
    } else if (!perform_collective(comm, operation)) {
      return false;
    }
  }
  return perform_messages(comm, messages);
}

}  // namespace fake
