#include "engine/engine.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "core/thread.h"
#include "engine/communicator.h"

namespace collectives {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;

// Looks at a flag before the engine turns to other work: enough for a peer that runs on another core...
constexpr int kSpinsAlone = 64;
// ...and few when the peer may need this core to get there (Turns::await knows more of mapped ranks).
constexpr int kSpinsShared = 6;
// For each rank that shares the core: a rank that sleeps is woken by every flag of any other, most of them in vain, so
// it sleeps only where it has not been its turn for longer than all others take for theirs.
constexpr auto kSleepAfter = milliseconds(1);
// Bounds the cost of a wake-up that was lost because it raced with falling asleep.
constexpr int kSleepMs = 5;
// For each rank that shares the core, as together they cost it this often.
constexpr auto kCheckEvery = milliseconds(2);
constexpr auto kCheckAtLeastEvery = milliseconds(20);
// So often a communicator with nothing in flight is driven for nothing before it is only driven with all others.
constexpr int kWarmDrives = 256;

std::mutex g_engines_mutex;
std::vector<Engine*>& engines() {
  static auto* list = new std::vector<Engine*>;  // outlives every engine, whatever the order of destruction
  return *list;
}

void close_descriptor(int& descriptor) {
  if (descriptor >= 0) {
    close(descriptor);
    descriptor = -1;
  }
}

}  // namespace

// In the child of a fork: give up what would keep the parent's peers from noticing its death.
void Engine::after_fork_in_child() {
  for (Engine* engine : engines()) {
    engine->forked_ = true;  // there is no other thread here
    if (engine->memory() != nullptr) {
      engine->memory()->leave_to_parent();
    }
    for (Peer& peer : engine->peers()) {
      close_descriptor(peer.control_fd);
      close_descriptor(peer.pid_fd);
      if (peer.link != nullptr && peer.link->descriptor() >= 0) {
        close(peer.link->descriptor());
      }
    }
  }
  engines().clear();  // this process may fork, too
  g_engines_mutex.unlock();
}

Engine::Engine(int rank, std::vector<Peer> peers, int doorbell, int ranks_per_core, std::shared_ptr<HostMemory> memory)
    : rank_(rank),
      peers_(std::move(peers)),
      doorbell_(doorbell),
      ranks_per_core_(ranks_per_core),
      spins_(ranks_per_core > 1 ? kSpinsShared : kSpinsAlone),
      memory_(std::move(memory)),
      recorder_(rank, static_cast<int>(peers_.size())) {
  static const int handlers =
      pthread_atfork([] { g_engines_mutex.lock(); }, [] { g_engines_mutex.unlock(); }, after_fork_in_child);
  (void)handlers;
  const std::lock_guard guard(g_engines_mutex);
  engines().push_back(this);
}

Engine::~Engine() {
  if (forked()) {
    // There is no such thread in this process, so it can neither be joined nor detached; nor one that waits for this,
    // which its destructor would wait for.
    new (&thread_) std::thread;
    new (&thread_wake_) std::condition_variable;
    completion_.leave_to_parent();
    for (Peer& peer : peers_) {
      [[maybe_unused]] Link* leaked = peer.link.release();  // its descriptor is closed already
    }
    return;
  }
  {
    const std::lock_guard guard(g_engines_mutex);
    std::erase(engines(), this);
  }
  if (thread_.joinable()) {
    {
      const std::lock_guard guard(thread_mutex_);
      thread_stop_ = true;
    }
    thread_wake_.notify_all();
    thread_.join();
  }
  for (Peer& peer : peers_) {
    close_descriptor(peer.control_fd);
    close_descriptor(peer.pid_fd);
  }
  close_descriptor(doorbell_);
}

bool Engine::leave() {
  if (!std::all_of(communicators_.begin(), communicators_.end(), [](const Communicator* c) { return c->closed(); })) {
    return false;
  }
  for (Peer& peer : peers_) {
    if (peer.link != nullptr) {
      peer.link->shut_down();
    }
  }
  return true;
}

void Engine::attach(Communicator* communicator) {
  communicators_.push_back(communicator);
  // What has happened since its members agreed to make it.
  const std::uint32_t number = communicator->options().id;
  if (const auto claim = claims_.find(number); claim != claims_.end()) {
    for (const auto& [rank, report] : claim->second) {
      communicator->receive_report(rank, report);
    }
    claims_.erase(claim);
  }
  if (const auto kept = kept_notes_.find(number); kept != kept_notes_.end()) {
    for (const auto& [rank, words] : kept->second) {
      communicator->receive_note(rank, words);
    }
    kept_notes_.erase(kept);
  }
  for (const Peer& peer : peers_) {
    communicator->peer_gone(peer);
  }
}

void Engine::detach(Communicator* communicator) {
  IntrusiveList<Communicator>::remove(*communicator);
  std::erase(communicators_, communicator);
}

void Engine::warm(Communicator& communicator) {
  communicator.idle_drives = 0;
  if (!warm_.has(communicator)) {
    warm_.push_back(communicator);
  }
}

bool Engine::drive() {
  bool any = false;
  for (Communicator* communicator = warm_.front(); communicator != nullptr;) {
    Communicator* const next = warm_.next(*communicator);
    const bool moved = communicator->drive();
    any = any || moved;
    if (moved || communicator->busy()) {
      communicator->idle_drives = 0;
    } else if (++communicator->idle_drives > kWarmDrives) {
      IntrusiveList<Communicator>::remove(*communicator);
    }
    communicator = next;
  }
  return any;
}

bool Engine::drive_all() {
  bool any = false;
  for (Communicator* communicator : communicators_) {
    if (communicator->drive()) {
      any = true;
      warm(*communicator);
    }
  }
  return any;
}

bool Engine::wait(const std::function<bool()>& finished, double timeout_s) {
  waiters_.fetch_add(1, std::memory_order_relaxed);
  Clock::time_point idle_since;
  Clock::time_point looked;
  Clock::time_point started;
  bool idle = false;
  bool timed_out = false;
  const bool crowded = ranks_per_core_ > 1;
  const auto sleep_after = kSleepAfter * ranks_per_core_;
  const auto check_every = std::min(kCheckEvery * ranks_per_core_, kCheckAtLeastEvery);
  while (!finished()) {
    const bool moved = drive();
    wake_waiters();
    if (finished()) {
      break;
    }
    if (lock_.contended()) {
      lock_.unlock();
      sched_yield();
      lock_.lock();
    }
    if (moved) {
      idle = false;
      continue;
    }
    const Clock::time_point now = Clock::now();
    if (started == Clock::time_point()) {
      started = looked = now;
    }
    if (!idle) {
      idle = true;
      idle_since = now;
    }
    const bool asleep = now - idle_since > sleep_after;
    if ((asleep && !crowded) || now - looked > check_every) {
      looked = now;
      check_all();
      if (finished()) {
        break;
      }
    }
    if (timeout_s >= 0 && duration<double>(now - started).count() >= timeout_s) {
      timed_out = true;
      break;
    }
    if (asleep) {
      sleep(kSleepMs);
    } else {
      // At once, even when every rank has a core: it costs 0.2 us when no other thread wants the core, and a rank that
      // keeps a core from its peer waits for a time slice.
      sched_yield();
    }
  }
  wake_waiters();
  waiters_.fetch_sub(1, std::memory_order_relaxed);
  if (thread_.joinable() && std::this_thread::get_id() != thread_.get_id() && busy()) {
    wake_progress_thread();  // the operations that are left need a thread
  }
  return !timed_out;
}

// In a crowd only what brings something to do. The ends of peers are left to watch_peers(), which a rank that sleeps
// calls often enough: to poll two descriptors of each peer would be most of what it costs to sleep.
std::vector<pollfd> Engine::wakers() const {
  const bool only_data = ranks_per_core_ > 1 && doorbell_ >= 0;
  std::vector<pollfd> descriptors{{doorbell_, POLLIN, 0}};
  for (const Peer& peer : peers_) {
    if (peer.state != Peer::State::kThere) {
      continue;
    }
    if (!only_data) {
      for (const int fd : {peer.control_fd, peer.pid_fd}) {
        descriptors.push_back({fd, POLLIN, 0});
      }
    }
    if (peer.link != nullptr) {
      const auto events = static_cast<short>(POLLIN | (peer.link->wants_write() ? POLLOUT : 0));
      descriptors.push_back({peer.link->descriptor(), events, 0});
    }
  }
  return descriptors;
}

// Sleeps until something happens, a few milliseconds at most. Whoever signals this rank rings its doorbell when it sees
// the flag `sleeping`; it is set before the last look, so only a signal that crosses that very look can be missed.
// Modelled in tests/model/doorbell.pml.
void Engine::sleep(int milliseconds) {
  change_sleepers(1);
  if (!drive_all()) {
    std::vector<pollfd> descriptors;
    try {
      descriptors = wakers();
    } catch (const std::bad_alloc&) {
      descriptors.clear();  // then only the time wakes it
    }
    const std::uint64_t before = announced_;
    lock_.unlock();
    poll(descriptors.data(), descriptors.size(), milliseconds);
    lock_.lock();
    clear_doorbell(before);
    drive_all();  // the ring may have been for the work of another thread
  }
  change_sleepers(-1);
}

// Clears the doorbell, unless other threads have yet to wake by a ring that was for them: a poll that has not returned
// yet would go on sleeping. before: announced_ when this
// thread fell asleep.
void Engine::clear_doorbell(std::uint64_t before) {
  if (before != announced_ && owed_ > 0) {
    --owed_;
  }
  std::uint64_t rings = 0;
  while (owed_ == 0 && doorbell_ >= 0 && read(doorbell_, &rings, sizeof rings) > 0) {
  }
}

void Engine::change_sleepers(int change) {
  sleepers_ += change;
  if (memory_ != nullptr) {
    memory_->set_sleeping(sleepers_);
  }
}

// A thread that drives finishes the works of others, and may have taken the ring of the doorbell that was for them.
void Engine::wake_waiters() {
  if (finished_ == announced_) {
    return;
  }
  announced_ = finished_;
  if (sleepers_ > 0 && doorbell_ >= 0) {
    owed_ = sleepers_;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(doorbell_, &one, sizeof one);
  }
}

void Engine::check_all() {
  try {
    drive_all();
    watch_peers();
    const Clock::time_point now = Clock::now();
    for (Communicator* communicator : communicators_) {
      communicator->check(now);
    }
  } catch (const std::exception&) {
    for (Communicator* communicator : communicators_) {
      communicator->fail_by_exception();
    }
  }
}

void Engine::need_progress_thread() {
  if (!thread_.joinable()) {
    thread_ = start_thread("collectives-run", "carries on asynchronous calls", [this] { progress_loop(); });
  }
}

void Engine::wake_progress_thread() {
  {
    const std::lock_guard guard(thread_mutex_);
    thread_work_ = true;
  }
  thread_wake_.notify_one();
}

void Engine::progress_loop() {
  for (;;) {
    {
      std::unique_lock guard(thread_mutex_);
      thread_wake_.wait(guard, [&] { return thread_stop_ || thread_work_; });
      if (thread_stop_) {
        return;
      }
      thread_work_ = false;
    }
    lock_.lock();
    // Steps aside as soon as another thread waits: one driver is enough, and a caller's thread is the better one.
    wait([&] { return !busy() || waiters_.load(std::memory_order_relaxed) > 1 || stopping(); }, -1);
    lock_.unlock();
  }
}

bool Engine::busy() const {
  for (Communicator* communicator = warm_.front(); communicator != nullptr; communicator = warm_.next(*communicator)) {
    if (communicator->busy()) {
      return true;
    }
  }
  return false;
}

bool Engine::stopping() {
  const std::lock_guard guard(thread_mutex_);
  return thread_stop_;
}

}  // namespace collectives
