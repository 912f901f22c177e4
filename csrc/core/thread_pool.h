// Worker threads that share the work of one call. One pool per process, made when it is first needed.
//
// Workers sleep between calls. A caller works along and does not wait for workers to wake up: when it has done
// everything before the first of them came, it returns. So a call is never slower than alone by more than the wake-up
// call to the kernel. While one caller has the workers, others do their work alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>

namespace collectives {

class ThreadPool {
 public:
  // The pool of this process. A forked child gets its own.
  static ThreadPool& instance();

  // How many threads a call may use, the caller among them; 0: as many as there are cores for this process.
  static void limit(int threads);

  // Threads that a call uses at most, the caller among them.
  static int threads();

  // Calls body(0), ..., body(slices - 1), each once, in any order and on up to `helpers` workers and the calling
  // thread, and returns when all are done. All compute in the same floating-point environment
  // (core/float_environment.h), so that results do not depend on who computes them. `body` must not throw and must not
  // use the pool.
  void run(std::size_t slices, int helpers, const std::function<void(std::size_t)>& body);

 private:
  struct Job;

  bool start_worker();
  void start_workers(int wanted);
  void worker(std::uint32_t seen);
  void work_off(Job& job);

  std::mutex caller_;  // held by the caller that has the workers
  int workers_ = 0;    // started so far
  Job* job_ = nullptr;
  // Workers sleep on it; every job increments it.
  std::atomic<std::uint32_t> generation_{0};
  // kOpen while workers may join the job, plus the number of workers in it. The job is on the caller's stack, so it may
  // go only when this is 0, and a worker that comes late must not look at it.
  static constexpr std::uint32_t kOpen = 1u << 31;
  std::atomic<std::uint32_t> gate_{0};
};

// Bytes read and written from which on a call uses more than one thread. Waking a worker costs the caller 5 us and the
// worker comes 13 to 27 us later, so less than 30 us of work gains nothing. One thread takes 1.5 us for 256 KiB, 7 for
// 1 MiB and 34 to 45 for 4 MiB (2 replicas, in caches). See docs/lab/replicas.md.
inline constexpr std::int64_t kParallelBytes = 4 << 20;

// Calls body(slice, slices) for each of so many slices of a work that reads and writes `bytes` bytes: on this thread
// when that is little, else on as many as the pool gives.
void parallel_for(std::int64_t bytes, const std::function<void(std::int64_t slice, std::int64_t slices)>& body);

}  // namespace collectives
