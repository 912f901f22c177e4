// Slots are not written again before all have read what was there: where there are more collectives than slots, and
// where slots lie otherwise than those of the collective before (Schedule::slot_pitch). The slot of a chunk then has
// memory of other slots, of which no number says that it is in use.
//
// One thread steps three ranks. Others go on to the next collectives while rank 1 has not read yet what they gave it.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "local_world.h"
#include "verify/verifier.h"

namespace {

using namespace collectives;

constexpr int kRanks = 3;
constexpr int kLate = 1;

int g_failures = 0;

void check(bool good, const std::string& what) {
  if (!good) {
    std::fprintf(stderr, "FAILED: %s\n", what.c_str());
    ++g_failures;
  }
}

// An all_gather of one chunk, or a broadcast by rank 0, of all ranks.
class Collectives {
 public:
  Collectives(LocalWorld& world, Collective collective, std::int64_t bytes, float salt)
      : world_(world), gathers_(collective == Collective::kAllGather), salt_(salt) {
    const auto count = static_cast<std::size_t>(bytes / 4);
    for (int r = 0; r < kRanks; ++r) {
      given_[r].assign(count, salt + static_cast<float>(r));
      gotten_[r].assign(gathers_ ? kRanks * count : 0, -1);
      std::vector<float>& result = gathers_ ? gotten_[r] : given_[r];
      calls_[r].collective = collective;
      calls_[r].input = {{reinterpret_cast<std::byte*>(given_[r].data()), bytes}};
      calls_[r].output = {{reinterpret_cast<std::byte*>(result.data()), static_cast<std::int64_t>(4 * result.size())}};
    }
  }

  bool begin(int r) { return done_[r] = world_.ranks[r]->run(calls_[r], works_[r]); }

  // To be run when those before it let it, beside them.
  void post(int r) { works_[r] = world_.ranks[r]->post(calls_[r], false); }

  bool step(int r) { return done_[r] = done_[r] || world_.ranks[r]->wait(*works_[r], 0); }

  void end() {
    for (bool all = false; !all;) {
      all = true;
      for (int r = 0; r < kRanks; ++r) {
        all = step(r) && all;
      }
    }
  }

  void check_results(const std::string& name) const {
    for (int r = 0; r < kRanks; ++r) {
      const std::vector<float>& result = gathers_ ? gotten_[r] : given_[r];
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < result.size(); ++i) {
        wrong += result[i] != salt_ + static_cast<float>(gathers_ ? i / given_[r].size() : 0);
      }
      check(wrong == 0, name + ": " + std::to_string(wrong) + " elements of rank " + std::to_string(r) + " are wrong");
    }
  }

 private:
  LocalWorld& world_;
  bool gathers_;
  float salt_;
  std::vector<float> given_[kRanks];
  std::vector<float> gotten_[kRanks];
  Call calls_[kRanks];
  std::shared_ptr<Work> works_[kRanks];
  bool done_[kRanks] = {};
};

Problem problem_of(Collective collective, std::int64_t bytes) {
  Problem problem;
  problem.collective = collective;
  problem.dtype = DType::kFloat32;
  problem.count = bytes / 4 * (collective == Collective::kAllGather ? kRanks : 1);
  if (collective == Collective::kAllGather) {
    problem.counts.assign(kRanks * kRanks, bytes / 4);
  }
  return problem;
}

std::int64_t pitch(Collective collective, std::int64_t bytes) {
  return build_schedule("one_shot", problem_of(collective, bytes), one_host(0, kRanks), Limits()).slot_pitch;
}

// What the verifier says of a broadcast by chunks of 16 KiB whose slots lie so far apart on rank 0, and on the others.
bool verified(std::int64_t first, std::int64_t others) {
  const Problem problem = problem_of(Collective::kBroadcast, 48 << 10);
  std::vector<Schedule> schedules;
  for (int r = 0; r < kRanks; ++r) {
    schedules.push_back(build_schedule("one_shot", problem, one_host(r, kRanks), Limits()));
    schedules.back().slot_pitch = r == 0 ? first : others;
  }
  return verify(schedules, problem, one_host(0, kRanks), {}).ok;
}

void verify_pitches() {
  const std::int64_t chunk = 16 << 10;
  const std::int64_t slot = Limits().slot_bytes;
  for (const std::int64_t good : {std::int64_t{0}, chunk, 2 * chunk, slot}) {
    check(verified(good, good), std::to_string(good) + " bytes from slot to slot are refused");
  }
  for (const std::int64_t bad : {std::int64_t{-64}, chunk / 2, chunk + 8, slot + 64}) {
    check(!verified(bad, bad), std::to_string(bad) + " bytes from slot to slot are taken");
  }
  check(!verified(chunk, 2 * chunk), "ranks may have their slots in different places");
}

constexpr std::int64_t kPart = 100 << 10;  // bytes, of an all_gather: one chunk

// Rank 0 must not write into a slot again while rank 1 has to read it, however many collectives there are, and have
// been.
void more_than_slots(int before) {
  LocalWorld world(kRanks, Limits(), true);
  for (int i = 0; i < before; ++i) {
    Collectives gather(world, Collective::kAllGather, kPart, 5);
    for (int r = 0; r < kRanks; ++r) {
      gather.begin(r);
    }
    gather.end();
  }
  std::vector<std::unique_ptr<Collectives>> gathers;
  for (int i = 0; i < Limits().slots + 2; ++i) {
    gathers.push_back(
        std::make_unique<Collectives>(world, Collective::kAllGather, kPart, 10.0F * static_cast<float>(i)));
  }
  Collectives& first = *gathers[0];
  check(!first.begin(kLate) && !first.begin(0) && first.begin(2) && first.step(0), "rank 1 is not late");
  for (std::size_t i = 1; i < gathers.size(); ++i) {
    gathers[i]->post(0);
  }
  first.end();
  first.check_results("the first all_gather");
  for (std::size_t i = 1; i < gathers.size(); ++i) {
    gathers[i]->post(kLate);
    gathers[i]->post(2);
  }
  for (std::size_t i = 1; i < gathers.size(); ++i) {
    gathers[i]->end();
    gathers[i]->check_results("all_gather " + std::to_string(i));
  }
}

// Rank 0 must not write into its slots 1 and 2 while rank 1 has to read its slot 0, where they lie now.
void packed_after_whole() {
  LocalWorld world(kRanks, Limits(), true);
  Collectives gather(world, Collective::kAllGather, kPart, 10);
  Collectives broadcast(world, Collective::kBroadcast, 32 << 10, 50);
  check(!gather.begin(kLate) && !gather.begin(0) && gather.begin(2) && gather.step(0), "rank 0 is not ahead");
  check(!broadcast.begin(0), "a broadcast is complete before any other rank has entered");
  gather.end();
  gather.check_results("all_gather");
  broadcast.begin(kLate);
  broadcast.begin(2);
  broadcast.end();
  broadcast.check_results("broadcast after it");
}

// Nor into its slot 0 while rank 1 has to read slots 1 to 3, which lie there.
void whole_after_packed() {
  LocalWorld world(kRanks, Limits(), true);
  Collectives first(world, Collective::kAllGather, kPart, 10);
  for (int r = 0; r < kRanks; ++r) {
    first.begin(r);
  }
  first.end();
  Collectives broadcast(world, Collective::kBroadcast, 48 << 10, 50);
  Collectives gather(world, Collective::kAllGather, kPart, 90);
  check(!broadcast.begin(kLate) && !broadcast.begin(2) && broadcast.begin(0) && broadcast.step(2),
        "rank 1 is not late");
  check(!gather.begin(0), "an all_gather is complete before any other rank has entered");
  broadcast.end();
  broadcast.check_results("broadcast");
  gather.begin(kLate);
  gather.begin(2);
  gather.end();
  gather.check_results("all_gather after it");
}

}  // namespace

int main() {
  check(pitch(Collective::kAllGather, kPart) == 0, "the slots of an all_gather are not whole ones");
  check(pitch(Collective::kBroadcast, 32 << 10) == 16 << 10, "the slots of a broadcast do not lie side by side");
  verify_pitches();
  more_than_slots(0);
  more_than_slots(21);
  packed_after_whole();
  whole_after_packed();
  return g_failures == 0 ? 0 : 1;
}
