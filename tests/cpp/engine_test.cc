// Stress test of the engine: ranks as threads over one mapping, so that ThreadSanitizer sees both sides of every flag.
//
// Every rank runs the same seeded program of messages, and of collectives over every registered algorithm, in private
// and in symmetric memory, blocking and in flight, and checks each result against what it can compute by itself. So for
// ranks of one host, of several hosts, and of a host each. In the end all algorithms must have run. Usage: engine_test
// [seed] [calls]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/communicator.h"
#include "engine_program.h"
#include "local_world.h"

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

// What has run: algorithms, and those that address the arrays of other ranks.
std::mutex g_mutex;
std::set<const Algorithm*> g_ran;
std::set<const Algorithm*> g_ran_symmetric;

void note(const Work& work) {
  if (work.is_message()) {
    return;
  }
  const Plan& plan = *work.plan;
  const std::lock_guard guard(g_mutex);
  g_ran.insert(plan.algorithm);
  for (const Operand& operand : plan.schedule.operands) {
    if (operand.region == Region::kPeerInput || operand.region == Region::kPeerOutput) {
      g_ran_symmetric.insert(plan.algorithm);
    }
  }
}

void check_item(const Item& item, int rank) {
  if (const std::string fault = item.fault(); !fault.empty()) {
    check(false, "rank " + std::to_string(rank) + " " + fault);
  }
}

void program(Communicator& communicator, std::uint64_t seed, int calls) {
  const int rank = communicator.rank();
  const bool symmetric = communicator.domain() != nullptr && communicator.topology().all_mapped();
  Maker maker(seed, communicator.topology(), symmetric ? communicator.domain()->heap(rank) : nullptr);
  std::vector<std::unique_ptr<Item>> in_flight;
  for (int i = 0; i < calls; ++i) {
    auto item = maker.next();
    const int kind = maker.below(4);
    if (item == nullptr) {
      continue;
    }
    const auto same_slot = [&](const auto& other) {
      return !item->heap.empty() && !other->heap.empty() && item->heap[0].data == other->heap[0].data;
    };
    for (const auto& other : in_flight) {
      if (same_slot(other)) {
        communicator.wait(*other->work, -1);
        check_item(*other, rank);
      }
    }
    std::erase_if(in_flight, same_slot);
    item->fill_heap();
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
    note(*item->work);
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
  const std::vector<std::vector<int>> worlds{{0},    {0, 0},    {0, 0, 0},    {0, 0, 0, 0, 0},
                                             {0, 1}, {0, 1, 2}, {0, 0, 1, 1}, {0, 1, 0, 0, 1}};
  for (const std::vector<int>& host : worlds) {
    const int size = static_cast<int>(host.size());
    // Slots that even small arrays go round many times, so few that nothing is done ahead, and as many as usual.
    for (const auto& [slot_bytes, slots] : {std::pair(256, 2), std::pair(256, 4), std::pair(128 << 10, 4)}) {
      Limits limits;
      limits.slot_bytes = slot_bytes;
      limits.segment_bytes = slot_bytes;
      limits.slots = slots;
      const LocalWorld group(limits, size > static_cast<int>(std::thread::hardware_concurrency()), host);
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
      std::printf("%d ranks on %d hosts, %d slots of %d bytes: %d failures\n", size,
                  *std::max_element(host.begin(), host.end()) + 1, slots, slot_bytes, g_failures.load());
    }
  }
  for (const Algorithm& algorithm : algorithms()) {
    check(g_ran.contains(&algorithm),
          std::string(name(algorithm.collective)) + " " + std::string(algorithm.name) + " has not run");
  }
  check(g_ran_symmetric.size() >= 2,
        "only " + std::to_string(g_ran_symmetric.size()) + " algorithms have run straight on symmetric memory");
  return g_failures.load() == 0 ? 0 : 1;
}
