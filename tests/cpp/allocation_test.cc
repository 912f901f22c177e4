// The n-th allocation of a call fails, for each n. Then either the call never was: the same call again works, with its
// peer. Or it has failed on all ranks; and nothing touches its memory once the caller has that error.

#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "local_world.h"
#include "replaced_new.h"

namespace {

thread_local long g_until_failure = 0;  // allocations of this thread; 0: none fails

}  // namespace

void before_allocation(std::size_t /*bytes*/) {
  if (g_until_failure > 0 && --g_until_failure == 0) {
    throw std::bad_alloc();
  }
}

namespace {

using namespace collectives;

std::atomic<int> g_failures{0};

void check(bool good, const std::string& what) {
  if (!good) {
    std::fprintf(stderr, "FAILED: %s\n", what.c_str());
    ++g_failures;
  }
}

// Whole pages of floats. A thread that touches them after revoke() ends the program.
class Area {
 public:
  Area(std::int64_t bytes, float value) : bytes_(bytes) {
    data_ = mmap(nullptr, rounded(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (std::int64_t i = 0; i < count(); ++i) {
      floats()[i] = value;
    }
  }
  ~Area() { munmap(data_, rounded()); }
  Area(const Area&) = delete;
  Area& operator=(const Area&) = delete;

  void revoke() { mprotect(data_, rounded(), PROT_NONE); }
  Span span() const { return {static_cast<std::byte*>(data_), bytes_}; }
  bool all(float value) const {
    for (std::int64_t i = 0; i < count(); ++i) {
      if (floats()[i] != value) {
        return false;
      }
    }
    return true;
  }

 private:
  float* floats() const { return static_cast<float*>(data_); }
  std::int64_t count() const { return bytes_ / 4; }
  std::size_t rounded() const { return static_cast<std::size_t>((bytes_ + 4095) / 4096 * 4096); }

  std::int64_t bytes_;
  void* data_;
};

struct Way {
  const char* name;
  std::vector<int> host;
  std::int64_t bytes;
  bool message;
};

Call call_of(const Way& way, int rank, const Area& area) {
  Call call;
  call.collective = way.message ? Collective::kMessage : Collective::kAllReduce;
  call.message = {1 - rank, 0, rank == 0};
  call.input = {area.span()};
  call.output = {area.span()};
  return call;
}

std::shared_ptr<Work> post(const Way& way, Communicator& communicator, const Call& call) {
  return way.message ? communicator.post_message(call, true) : communicator.post(call, true);
}

// Whether the n-th allocation of the call came at all.
bool fails(const Way& way, long n) {
  const std::string name = std::string(way.name) + ", allocation " + std::to_string(n);
  Limits limits;
  limits.slot_bytes = 4096;
  limits.segment_bytes = 4096;
  LocalWorld world(limits, false, way.host);
  Communicator& victim = *world.ranks[0];
  Area first(way.bytes, 1);
  Area again(way.bytes, 1);
  Area theirs(way.bytes, 2);
  std::shared_ptr<Work> work;
  bool failed = false;
  const Call call = call_of(way, 0, first);
  g_until_failure = n;
  try {
    work = post(way, victim, call);
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  const bool came = g_until_failure == 0;
  g_until_failure = 0;
  bool gone = false;  // the communicator of rank 0
  if (came && !failed) {
    // Then it came in the middle of progress, which a caller learns only by the end of the work.
    try {
      gone = !victim.wait(*work, 60);
    } catch (const CollectivesError& error) {
      gone = true;
      first.revoke();
      check(error.kind() == ErrorKind::kPeer, name + ": rank 0 hears of " + error.what());
    }
  }
  if (failed) {
    first.revoke();
    try {
      work = post(way, victim, call_of(way, 0, again));
    } catch (const CollectivesError& error) {
      gone = true;
      check(error.kind() == ErrorKind::kPeer, name + ": rank 0 hears of " + error.what());
    }
  }
  try {
    const std::shared_ptr<Work> other = post(way, *world.ranks[1], call_of(way, 1, theirs));
    check(world.ranks[1]->wait(*other, 60), name + ": rank 1 waits for ever");
    check(!gone || way.message, name + ": rank 1 has a result that rank 0 has not");
    check(gone || theirs.all(way.message ? 1 : 3), name + ": the result of rank 1 is wrong");
  } catch (const CollectivesError& error) {
    check(gone, name + ": rank 1 fails, and rank 0 does not: " + error.what());
  }
  if (!gone) {
    check(victim.wait(*work, 60), name + ": rank 0 waits for ever");
    check((failed ? again : first).all(way.message ? 1 : 3), name + ": the result of rank 0 is wrong");
  }
  return came;
}

}  // namespace

int main() {
  const std::vector<Way> ways = {
      {"all_reduce over memory", {0, 0}, 1 << 16, false}, {"a short one", {0, 0}, 64, false},
      {"all_reduce over a link", {0, 1}, 1 << 16, false}, {"a short one over a link", {0, 1}, 64, false},
      {"a message over memory", {0, 0}, 1 << 16, true},   {"a short message", {0, 0}, 64, true},
      {"a message over a link", {0, 1}, 1 << 20, true},
  };
  // Side by side: after each failure the ranks wait for each other's reports. Only allocations of the caller fail.
  std::vector<std::thread> threads;
  for (const Way& way : ways) {
    threads.emplace_back([&way] {
      long n = 1;
      while (n < 1000 && fails(way, n)) {
        ++n;
      }
      check(n > 3 && n < 1000, std::string(way.name) + ": it makes " + std::to_string(n - 1) + " allocations");
      std::printf("%s: %ld allocations\n", way.name, n - 1);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return g_failures == 0 ? 0 : 1;
}
