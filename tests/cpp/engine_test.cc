// Stress test of the engine: ranks as threads over one mapping, so that ThreadSanitizer sees both sides of every flag.
//
// Every rank runs the same seeded program of collectives, blocking and in flight, over every registered algorithm, and
// checks each result against the sum that it can compute by itself. Usage: engine_test [seed] [calls]

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/algorithm.h"
#include "core/domain.h"
#include "core/memory.h"
#include "runtime/communicator.h"

namespace {

using namespace collectives;

std::atomic<int> g_failures{0};

void check(bool ok, const std::string& what) {
  if (!ok) {
    std::fprintf(stderr, "FAILED: %s\n", what.c_str());
    ++g_failures;
  }
}

struct Group {
  std::vector<Mapping> segments;
  std::vector<int> doorbells;
  std::vector<std::unique_ptr<Communicator>> ranks;
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() {
    ranks.clear();
    for (const int doorbell : doorbells) {
      close(doorbell);
    }
  }
};

std::unique_ptr<Group> make_group(int size, const Limits& limits) {
  auto group = std::make_unique<Group>();
  const SegmentLayout layout(size, limits, 1 << 20, HostMemory::default_arena_bytes(size, limits, 1 << 20));
  std::vector<std::byte*> bases;
  for (int r = 0; r < size; ++r) {
    group->segments.push_back(find_memory("host").map(-1, layout.total));
    bases.push_back(group->segments.back().data());
    group->doorbells.push_back(eventfd(0, EFD_NONBLOCK));
  }
  for (int r = 0; r < size; ++r) {
    auto memory = std::make_shared<HostMemory>(r, limits, layout, find_memory("host"), bases, group->doorbells,
                                               std::make_shared<int>(0));
    auto engine = std::make_shared<Engine>(r, std::vector<Peer>(size), dup(group->doorbells[r]), size, memory);
    CommunicatorOptions options;
    options.topology = one_host(r, size);
    options.mapped_transport = "local";
    options.timeout_s = 120;
    group->ranks.push_back(std::make_unique<Communicator>(engine, memory->world_domain(), options));
  }
  return group;
}

// One call of the program; the same on every rank but for the values.
struct Item {
  Call call;
  std::vector<std::vector<std::int64_t>> tensors;
  std::int64_t expected = 0;  // of every element, -1 where this rank gets no result
  std::shared_ptr<Work> work;
};

// Values are small multiples of the rank, so that sums are exact and every rank knows them.
std::unique_ptr<Item> make_item(std::mt19937_64& random, int rank, int size) {
  const auto below = [&](std::uint64_t n) { return static_cast<int>(random() % n); };
  auto item = std::make_unique<Item>();
  const std::vector<Algorithm>& all = algorithms();
  const Topology topology = one_host(rank, size);
  Problem problem;
  const Algorithm* algorithm = nullptr;
  do {
    algorithm = &all[below(all.size())];
    problem.collective = algorithm->collective;
    problem.dtype = DType::kInt64;
  } while (has_parts(algorithm->collective) || !algorithm->unsupported(problem, topology).empty());
  item->call.collective = algorithm->collective;
  item->call.dtype = DType::kInt64;
  item->call.root = below(size);
  item->call.algorithm = below(3) == 0 ? 0 : algorithm_id(*algorithm);
  const int base = below(1000);
  const int tensors = algorithm->collective == Collective::kBarrier ? 0 : below(4) == 0 ? 1 + below(20) : 1;
  for (int t = 0; t < tensors; ++t) {
    const int length = below(8) == 0 ? below(3000) : below(40);
    item->tensors.emplace_back(length, static_cast<std::int64_t>(base + rank));
  }
  for (auto& tensor : item->tensors) {
    item->call.input.push_back(
        {reinterpret_cast<std::byte*>(tensor.data()), static_cast<std::int64_t>(tensor.size() * sizeof(std::int64_t))});
  }
  item->call.output = item->call.input;
  const std::int64_t sum = static_cast<std::int64_t>(base) * size + static_cast<std::int64_t>(size) * (size - 1) / 2;
  switch (algorithm->collective) {
    case Collective::kAllReduce:
      item->expected = sum;
      break;
    case Collective::kReduce:
      item->expected = rank == item->call.root ? sum : -1;
      break;
    case Collective::kBroadcast:
      item->expected = base + item->call.root;
      break;
    default:
      item->expected = -1;  // a barrier
      break;
  }
  return item;
}

void check_item(const Item& item, int rank) {
  for (const auto& tensor : item.tensors) {
    for (const std::int64_t value : tensor) {
      if (item.expected >= 0 && value != item.expected) {
        check(false, "rank " + std::to_string(rank) + " " + std::string(name(item.call.collective)) + " algorithm " +
                         std::to_string(item.call.algorithm) + ": " + std::to_string(value) + " instead of " +
                         std::to_string(item.expected));
        return;
      }
    }
  }
}

void program(Communicator& communicator, std::uint64_t seed, int calls) {
  std::mt19937_64 random(seed);
  const int rank = communicator.rank();
  std::vector<std::unique_ptr<Item>> in_flight;
  for (int i = 0; i < calls; ++i) {
    auto item = make_item(random, rank, communicator.size());
    const auto kind = random() % 4;
    if (kind == 0 && item->tensors.size() <= 1) {
      std::shared_ptr<Work> work;
      if (!communicator.run(item->call, work)) {
        communicator.wait(*work, -1);
        communicator.finish_run(std::move(work));
      }
      check_item(*item, rank);
      continue;
    }
    item->work = communicator.post(item->call, kind != 1);
    if (kind == 1) {
      communicator.wait(*item->work, -1);
      check_item(*item, rank);
      continue;
    }
    in_flight.push_back(std::move(item));
    if (in_flight.size() == 20) {
      // In any order: the last first.
      for (; !in_flight.empty(); in_flight.pop_back()) {
        communicator.wait(*in_flight.back()->work, -1);
        check_item(*in_flight.back(), rank);
      }
    }
  }
  for (auto& item : in_flight) {
    communicator.wait(*item->work, -1);
    check_item(*item, rank);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  const int calls = argc > 2 ? std::atoi(argv[2]) : 400;
  for (const int size : {1, 2, 3, 5}) {
    for (const std::int64_t slot_bytes : {256, 128 << 10}) {
      Limits limits;
      limits.slot_bytes = slot_bytes;
      limits.segment_bytes = slot_bytes;
      limits.slots = slot_bytes == 256 ? 2 : 4;
      const auto group = make_group(size, limits);
      std::vector<std::thread> threads;
      for (int r = 0; r < size; ++r) {
        threads.emplace_back([&, r] {
          try {
            program(*group->ranks[r], seed + size, calls);
          } catch (const std::exception& error) {
            check(false, "rank " + std::to_string(r) + ": " + error.what());
          }
        });
      }
      for (std::thread& thread : threads) {
        thread.join();
      }
      std::printf("%d ranks, slots of %lld bytes: %d failures\n", size, static_cast<long long>(slot_bytes),
                  g_failures.load());
    }
  }
  return g_failures.load() == 0 ? 0 : 1;
}
