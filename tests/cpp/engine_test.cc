// Stress test of the engine: ranks as threads over one mapping, so that ThreadSanitizer sees both sides of every flag.
//
// Every rank runs the same seeded program of messages, and of collectives over every registered algorithm, blocking and
// in flight, and checks each result against what it can compute by itself. Usage: engine_test [seed] [calls]

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine_program.h"
#include "local_world.h"
#include "runtime/communicator.h"

namespace {

using namespace collectives;
using namespace engine_test;

std::atomic<int> g_failures{0};

void check(bool ok, const std::string& what) {
  if (!ok) {
    std::fprintf(stderr, "FAILED: %s\n", what.c_str());
    ++g_failures;
  }
}

void check_item(const Item& item, int rank) {
  if (const std::string fault = item.fault(); !fault.empty()) {
    check(false, "rank " + std::to_string(rank) + " " + fault);
  }
}

void program(Communicator& communicator, std::uint64_t seed, int calls) {
  const int rank = communicator.rank();
  Maker maker(seed, rank, communicator.size());
  std::vector<std::unique_ptr<Item>> in_flight;
  for (int i = 0; i < calls; ++i) {
    auto item = maker.next();
    const int kind = maker.below(4);
    if (item == nullptr) {
      continue;
    }
    const bool message = item->call.collective == Collective::kMessage;
    if (kind == 0 && !message && item->input.size() <= 1 && item->output.size() <= 1) {
      std::shared_ptr<Work> work;
      if (!communicator.run(item->call, work)) {
        communicator.wait(*work, -1);
        communicator.finish_run(std::move(work));
      }
      check_item(*item, rank);
      continue;
    }
    item->work = message ? communicator.post_message(item->call, kind != 1) : communicator.post(item->call, kind != 1);
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
      const LocalWorld group(size, limits);
      std::vector<std::thread> threads;
      for (int r = 0; r < size; ++r) {
        threads.emplace_back([&, r] {
          try {
            program(*group.ranks[r], seed + size, calls);
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
