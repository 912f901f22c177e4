// Stress test of groups, for the sanitizers: every rank has a thread for each group that it is in, all over the engine
// of that rank, while one more thread makes and closes groups. Usage: groups_test [calls]

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/groups/meeting.h"
#include "engine/groups/reservation.h"
#include "local_world.h"

namespace {

using namespace collectives;

void check(bool holds, const std::string& what) {
  if (!holds) {
    std::fprintf(stderr, "FAILED: %s\n", what.c_str());
    std::_Exit(1);
  }
}

// What the ranks exchange when they make a group: a table that is read between two barriers.
struct Table {
  std::barrier<> barrier;
  std::vector<std::uint32_t> numbers;
  std::vector<int> claimed;
  std::vector<ReservedSegment> segments;
  explicit Table(int size) : barrier(size), numbers(size), claimed(size), segments(size) {}
};

// A group of all ranks, in reverse order.
std::unique_ptr<Communicator> make(Communicator& parent, Table& table) {
  const int size = parent.size();
  std::vector<int> members;
  for (int r = size - 1; r >= 0; --r) {
    members.push_back(r);
  }
  for (;;) {
    parent.engine()->lock().lock();
    table.numbers[parent.rank()] = parent.engine()->propose_number();
    parent.engine()->lock().unlock();
    table.barrier.arrive_and_wait();
    const std::uint32_t number = *std::max_element(table.numbers.begin(), table.numbers.end());
    Reservation reservation(parent, number, members);
    table.claimed[parent.rank()] = reservation.claimed() ? 1 : 0;
    table.segments[size - 1 - parent.rank()] = reservation.reserved();
    table.barrier.arrive_and_wait();
    const bool all = std::count(table.claimed.begin(), table.claimed.end(), 1) == size;
    const std::vector<ReservedSegment> segments = table.segments;
    table.barrier.arrive_and_wait();
    if (all) {
      return reservation.make(segments);
    }
    reservation.cancel();
  }
}

// A group of these ranks, without the others.
std::unique_ptr<Communicator> meet(Communicator& parent, const std::vector<int>& members, const MeetingKey& kind) {
  Meeting meeting(parent, members, kind, 600);
  while (!meeting.wait(1)) {
  }
  return meeting.finish();
}

// Sums of the ranks, blocking and in flight.
void use(Communicator& group, int calls, int salt) {
  std::vector<std::vector<std::int64_t>> data(8);
  std::vector<std::shared_ptr<Work>> works(data.size());
  const int expected = group.size() * (group.size() - 1) / 2;
  for (int i = 0; i < calls; ++i) {
    const std::size_t slot = i % data.size();
    if (works[slot] != nullptr) {
      group.wait(*works[slot], -1);
      for (const std::int64_t value : data[slot]) {
        check(value == expected, "group " + std::to_string(group.options().id) + ": " + std::to_string(value));
      }
    }
    data[slot].assign((i * 37 + salt) % 5 == 0 ? 3000 : 10, group.rank());
    Call call;
    call.dtype = DType::kInt64;
    call.input = {{reinterpret_cast<std::byte*>(data[slot].data()),
                   static_cast<std::int64_t>(data[slot].size() * sizeof(std::int64_t))}};
    call.output = call.input;
    if (i % 3 == 0) {
      works[slot] = group.post(call, i % 2 == 0);
    } else {
      std::shared_ptr<Work> work;
      if (!group.run(call, work)) {
        group.wait(*work, -1);
        group.finish_run(std::move(work));
      }
      works[slot].reset();
      check(data[slot][0] == expected, "blocking");
    }
  }
  for (const auto& work : works) {
    if (work != nullptr) {
      group.wait(*work, -1);
    }
  }
}

// Pairs that meet, each several times. Several threads of a rank do so at a time, each with a tag of its own.
void use_pairs(Communicator& parent, int rounds, std::uint64_t tag) {
  for (int i = 0; i < rounds; ++i) {
    for (int a = 0; a < parent.size(); ++a) {
      for (int b = a + 1; b < parent.size(); ++b) {
        if (parent.rank() == a || parent.rank() == b) {
          use(*meet(parent, {b, a}, {tag, static_cast<std::uint64_t>(a * parent.size() + b) << 32}), 3, i);
        }
      }
    }
  }
}

void stress(int size, int calls, int slots) {
  Limits limits;
  limits.slot_bytes = limits.segment_bytes = 512;
  limits.slots = slots;
  LocalWorld world(size, limits);
  constexpr int kGroups = 3;
  std::vector<std::unique_ptr<Table>> tables;
  for (int i = 0; i <= kGroups; ++i) {
    tables.push_back(std::make_unique<Table>(size));
  }
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    for (int i = 0; i < kGroups; ++i) {
      threads.emplace_back([&, r, i] { use(*make(*world.ranks[r], *tables[i]), calls, i); });
    }
    threads.emplace_back([&, r] {
      for (int i = 0; i < calls / 10; ++i) {
        use(*make(*world.ranks[r], *tables[kGroups]), 3, i);
      }
    });
    for (std::uint64_t tag = 0; tag < 2; ++tag) {
      threads.emplace_back([&, r, tag] { use_pairs(*world.ranks[r], calls / 10, tag); });
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::printf("ok %d ranks\n", size);
}

}  // namespace

int main(int argc, char** argv) {
  const int calls = argc > 1 ? std::atoi(argv[1]) : 300;
  for (const int size : {2, 3}) {
    stress(size, calls, size % 2 == 0 ? 2 : 4);
  }
  return 0;
}
