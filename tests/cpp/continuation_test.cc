// Calls that continue by others: collectives behind them wait for their numbers, messages do not, and a disagreement
// ends one call.

#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "local_world.h"

namespace {

using namespace collectives;

constexpr int kSize = 3;

void check(bool good, const std::string& what) {
  if (!good) {
    throw std::runtime_error(what);
  }
}

Span span_of(std::vector<float>& array) {
  return {reinterpret_cast<std::byte*>(array.data()), static_cast<std::int64_t>(array.size() * sizeof(float))};
}

Call call_of(Collective collective, std::vector<float>& array) {
  Call call;
  call.collective = collective;
  call.input = call.output = {span_of(array)};
  return call;
}

// Rank 0 says by a broadcast how many sums follow it; all but the first rank know neither that nor their length before.
class Sums : public Continuation {
 public:
  Sums(int rank, int sums, bool disagrees) : head_{rank == 0 ? static_cast<float>(sums) : -1}, disagrees_(disagrees) {}

  Call first() { return call_of(Collective::kBroadcast, head_); }
  bool next(Call& call) override {
    if (disagrees_) {
      throw Disagreement("they do not fit", 0, 1);
    }
    array.assign(static_cast<std::size_t>(10 * head_[0]), done_ == 0 ? 1.0F : array[0]);
    call = call_of(Collective::kAllReduce, array);
    return ++done_ < static_cast<int>(head_[0]);
  }

  std::vector<float> array;

 private:
  std::vector<float> head_;
  bool disagrees_;
  int done_ = 0;
};

float power(int exponent) { return exponent == 0 ? 1.0F : kSize * power(exponent - 1); }

// The same collectives on all ranks, some of which continue, each waited for at once or some time later.
void run_program(Communicator& comm, unsigned seed) {
  constexpr int kCalls = 300;
  std::mt19937 program(seed);
  std::mt19937 own(seed * 100 + static_cast<unsigned>(comm.rank()));
  struct Pending {
    std::shared_ptr<Work> work;
    std::unique_ptr<std::vector<float>> array;
    Sums* sums;
    int count;
    bool disagrees;
  };
  std::vector<Pending> pending;
  const auto end_one = [&] {
    const std::size_t i = own() % pending.size();
    Pending one = std::move(pending[i]);
    pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
    try {
      comm.wait(*one.work, -1);
      check(!one.disagrees, "nobody has disagreed");
      check((one.sums != nullptr ? one.sums->array : *one.array)[0] == power(one.count), "a wrong sum");
    } catch (const CollectivesError& error) {
      check(one.disagrees && error.kind() == ErrorKind::kMismatch, error.what());
    }
  };
  for (int i = 0; i < kCalls; ++i) {
    const int count = static_cast<int>(program() % 4);
    const bool disagrees = count > 0 && program() % 8 == 0;
    const bool async = own() % 4 > 0;
    if (count == 0) {
      auto array = std::make_unique<std::vector<float>>(program() % 2000 + 1, 1.0F);
      const Call call = call_of(Collective::kAllReduce, *array);
      if (async) {
        pending.push_back({comm.post(call, true), std::move(array), nullptr, 1, false});
        continue;
      }
      std::shared_ptr<Work> work;
      if (!comm.run(call, work)) {
        comm.wait(*work, -1);
        comm.finish_run(std::move(work));
      }
      check(array->front() == power(1), "a wrong sum of a blocking call");
      continue;
    }
    auto sums = std::make_unique<Sums>(comm.rank(), count, disagrees);
    Sums* const known = sums.get();
    const Call first = known->first();
    pending.push_back({comm.post(first, std::move(sums), true), nullptr, known, count, disagrees});
    while (!pending.empty() && (!async || own() % 3 == 0)) {
      end_one();
    }
  }
  while (!pending.empty()) {
    end_one();
  }
}

void programs() {
  for (unsigned seed = 0; seed < 4; ++seed) {
    LocalWorld world(kSize, Limits());
    std::array<std::string, kSize> errors;
    std::vector<std::thread> threads;
    for (int r = 0; r < kSize; ++r) {
      threads.emplace_back([&, r] {
        try {
          run_program(*world.ranks[r], seed);
        } catch (const std::exception& error) {
          errors[r] = error.what();
          world.ranks[r]->abandon(error.what());
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (int r = 0; r < kSize; ++r) {
      check(errors[r].empty(), "seed " + std::to_string(seed) + ", rank " + std::to_string(r) + ": " + errors[r]);
    }
  }
}

// Closing ends a call that continues, and what waits behind it for a number.
void closing() {
  LocalWorld world(kSize, Limits());
  auto sums = std::make_unique<Sums>(0, 2, false);
  const Call first = sums->first();
  Communicator& comm = *world.ranks[1];
  const std::shared_ptr<Work> continues = comm.post(first, std::move(sums), true);
  std::vector<float> array(10, 1.0F);
  const std::shared_ptr<Work> behind = comm.post(call_of(Collective::kAllReduce, array), true);
  check(!continues->finished() && !behind->finished(), "they have ended without the others");
  comm.close();
  for (const auto& work : {continues, behind}) {
    check(work->finished() && work->error != nullptr && work->error->kind() == ErrorKind::kClosed,
          "closing has not ended a call");
  }
}

}  // namespace

int main() {
  const std::vector<std::pair<const char*, void (*)()>> tests = {{"programs", programs}, {"closing", closing}};
  for (const auto& [name, test] : tests) {
    try {
      test();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s: %s\n", name, error.what());
      return 1;
    }
  }
  return 0;
}
