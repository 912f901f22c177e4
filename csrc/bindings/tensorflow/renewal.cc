#include "bindings/tensorflow/renewal.h"

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "core/error.h"
#include "engine/directory.h"

namespace collectives::tensorflow {
namespace {

struct PendingRenewal {
  std::optional<std::int64_t> step;  // whose op raised the mismatch; nullopt: a call of the communicator itself
  bool renewing = false;             // a thread is making the new communicator; others wait for it
};

struct Renewals {
  std::mutex mutex;
  std::condition_variable attempted;
  std::map<std::int64_t, PendingRenewal> pending;  // by number
  std::atomic<std::size_t> count{0};               // pending.size(), which calls read without the lock
  Renew renew = nullptr;
};

// Never deleted: threads of TensorFlow may use it while the process ends.
Renewals& renewals() {
  static auto* const made = new Renewals;
  return *made;
}

void renew_now(std::int64_t number, std::optional<std::int64_t> step) {
  Renewals& all = renewals();
  std::string problem(4096, '\0');  // allocated first: below, an exception would leave `renewing` set
  std::unique_lock lock(all.mutex);
  all.attempted.wait(lock, [&] {
    const auto found = all.pending.find(number);
    return found == all.pending.end() || !found->second.renewing;
  });
  const auto found = all.pending.find(number);
  if (found == all.pending.end() || (step && found->second.step == step)) {
    return;
  }
  found->second.renewing = true;  // so that no other thread erases the entry
  const Renew renew = all.renew;
  lock.unlock();
  renew(number, problem.data(), problem.size());  // a collective call
  problem.resize(problem.find('\0'));
  lock.lock();
  found->second.renewing = false;
  if (problem.empty()) {
    all.pending.erase(found);
    all.count.store(all.pending.size(), std::memory_order_release);
  }
  all.attempted.notify_all();
  if (!problem.empty()) {
    throw CollectivesError(ErrorKind::kPeer, problem, {});
  }
}

}  // namespace

std::shared_ptr<Communicator> renewed(std::int64_t number, std::optional<std::int64_t> step) {
  if (renewals().count.load(std::memory_order_acquire) > 0) {
    renew_now(number, step);
  }
  return communicator_by_number(number);
}

void schedule_renewal(std::int64_t number, std::optional<std::int64_t> step,
                      const Communicator& communicator) noexcept {
  try {
    if (communicator_by_number(number).get() != &communicator) {
      return;  // it has been renewed since
    }
    Renewals& all = renewals();
    const std::lock_guard guard(all.mutex);
    all.pending[number].step = step;
    all.count.store(all.pending.size(), std::memory_order_release);
  } catch (const std::exception&) {
    return;  // no memory (see the header), or the program has dropped the group
  }
}

void renew_by(Renew renew) {
  Renewals& all = renewals();
  const std::lock_guard guard(all.mutex);
  all.renew = renew;
}

}  // namespace collectives::tensorflow
