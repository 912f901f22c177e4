#include "core/thread_pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <system_error>

#include "core/float_environment.h"
#include "core/thread.h"

namespace collectives {
namespace {

// Threads take slices of at least this many bytes, read and written, and a call has at most this many per thread.
constexpr std::int64_t kSliceBytes = 128 << 10;
constexpr std::int64_t kSlicesPerThread = 16;

// std::atomic::wait wakes one or all; here the number of workers that a call can use is known.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void futex_wake(std::atomic<std::uint32_t>& word, int count) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

int available_cores() {
  // The mask of a machine with more cores than cpu_set_t has bits does not fit; then one core per bit is plenty.
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : CPU_SETSIZE;
}

std::atomic<ThreadPool*> g_pool{nullptr};
std::atomic<int> g_limit{0};

// The threads of the parent do not exist in the child, and its locks may have been held: the child starts anew.
void after_fork_in_child() { g_pool.store(nullptr, std::memory_order_relaxed); }
[[maybe_unused]] const int g_handlers = pthread_atfork(nullptr, nullptr, after_fork_in_child);

}  // namespace

struct ThreadPool::Job {
  const std::function<void(std::size_t)>* body;
  std::size_t slices;
  std::atomic<std::size_t> next{0};
};

// Never deleted: workers sleep in it until the process is gone.
ThreadPool& ThreadPool::instance() {
  ThreadPool* pool = g_pool.load(std::memory_order_acquire);
  if (pool == nullptr) {
    auto made = std::make_unique<ThreadPool>();
    if (g_pool.compare_exchange_strong(pool, made.get(), std::memory_order_acq_rel)) {
      pool = made.release();
    }
  }
  return *pool;
}

void ThreadPool::limit(int threads) { g_limit.store(threads, std::memory_order_relaxed); }

int ThreadPool::threads() {
  const int limit = g_limit.load(std::memory_order_relaxed);
  return limit > 0 ? limit : available_cores();
}

bool ThreadPool::start_worker() {
  const std::uint32_t seen = generation_.load(std::memory_order_relaxed);
  try {
    start_thread("collectives", "helps to reduce", [this, seen] { worker(seen); }).detach();
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

void ThreadPool::start_workers(int wanted) {
  if (workers_ >= wanted) {
    return;
  }
  // When no more threads are to be had, those that are there will do.
  while (workers_ < wanted && start_worker()) {
    ++workers_;
  }
}

void ThreadPool::worker(std::uint32_t seen) {
  for (;;) {
    while (generation_.load(std::memory_order_acquire) == seen) {
      futex_wait(generation_, seen);
    }
    seen = generation_.load(std::memory_order_acquire);
    std::uint32_t gate = gate_.load(std::memory_order_relaxed);
    while ((gate & kOpen) != 0 && !gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire)) {
    }
    if ((gate & kOpen) == 0) {
      continue;
    }
    work_off(*job_);
    if (gate_.fetch_sub(1, std::memory_order_release) == 1) {
      futex_wake(gate_, 1);
    }
  }
}

void ThreadPool::work_off(Job& job) {
  const FloatEnvironment own;
  for (;;) {
    const std::size_t slice = job.next.fetch_add(1, std::memory_order_relaxed);
    if (slice >= job.slices) {
      return;
    }
    (*job.body)(slice);
  }
}

void ThreadPool::run(std::size_t slices, int helpers, const std::function<void(std::size_t)>& body) {
  Job job{&body, slices};
  const std::unique_lock mine(caller_, std::try_to_lock);
  const int wanted = static_cast<int>(std::min<std::size_t>(std::max(helpers, 0), slices - (slices > 0 ? 1 : 0)));
  if (!mine.owns_lock() || wanted == 0) {
    work_off(job);
    return;
  }
  start_workers(wanted);
  job_ = &job;
  gate_.store(kOpen, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  futex_wake(generation_, wanted);
  work_off(job);
  std::uint32_t inside = gate_.fetch_and(~kOpen, std::memory_order_acquire) & ~kOpen;
  while (inside != 0) {
    futex_wait(gate_, inside);
    inside = gate_.load(std::memory_order_acquire);
  }
}

void parallel_for(std::int64_t bytes, const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (bytes < kParallelBytes) {
    return body(0, 1);
  }
  const int threads = ThreadPool::threads();
  if (threads == 1) {
    return body(0, 1);
  }
  const std::int64_t slices = std::clamp<std::int64_t>(bytes / kSliceBytes, 1, kSlicesPerThread * threads);
  ThreadPool::instance().run(static_cast<std::size_t>(slices), threads - 1,
                             [&](std::size_t slice) { body(static_cast<std::int64_t>(slice), slices); });
}

}  // namespace collectives
