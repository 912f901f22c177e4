#include "bindings/tensorflow/renewal.h"

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "core/error.h"
#include "engine/directory.h"

namespace collectives::tensorflow {
namespace {

struct Noted {
  std::int64_t step = 0;  // that has told of a mismatch
  bool renewing = false;  // by one of its ops; others wait for that
};

struct Renewals {
  std::mutex mutex;
  std::condition_variable over;
  std::map<std::int64_t, Noted> noted;  // by number
  std::atomic<std::size_t> count{0};    // of these, so that a call needs no lock where there are none
  Renew renew = nullptr;

  void forget(std::map<std::int64_t, Noted>::iterator which) {
    noted.erase(which);
    count.store(noted.size(), std::memory_order_release);
  }
};

// Never deleted: threads of TensorFlow may still ask while the process ends.
Renewals& renewals() {
  static auto* const made = new Renewals;
  return *made;
}

void renew_now(std::int64_t number, std::int64_t step) {
  Renewals& all = renewals();
  std::unique_lock lock(all.mutex);
  all.over.wait(lock, [&] {
    const auto found = all.noted.find(number);
    return found == all.noted.end() || !found->second.renewing;
  });
  if (const auto found = all.noted.find(number); found == all.noted.end() || found->second.step == step) {
    return;
  }
  all.noted[number].renewing = true;
  const Renew renew = all.renew;
  lock.unlock();
  std::string problem(4096, '\0');
  renew(number, problem.data(), problem.size());  // all ranks meet in there
  problem.resize(problem.find('\0'));
  lock.lock();
  const auto found = all.noted.find(number);
  found->second.renewing = false;
  if (problem.empty()) {
    all.forget(found);
  }
  all.over.notify_all();
  if (!problem.empty()) {
    throw CollectivesError(ErrorKind::kPeer, problem, {});
  }
}

}  // namespace

std::shared_ptr<Communicator> renewed(std::int64_t number, std::int64_t step) {
  if (renewals().count.load(std::memory_order_acquire) > 0) {
    renew_now(number, step);
  }
  return communicator_by_number(number);
}

bool take_note(std::int64_t number) {
  Renewals& all = renewals();
  const std::lock_guard guard(all.mutex);
  const auto found = all.noted.find(number);
  if (found == all.noted.end()) {
    return false;
  }
  all.forget(found);
  return true;
}

void note_mismatch(std::int64_t number, std::int64_t step, const Communicator& communicator) {
  if (communicator_by_number(number).get() != &communicator) {
    return;
  }
  Renewals& all = renewals();
  const std::lock_guard guard(all.mutex);
  all.noted[number].step = step;
  all.count.store(all.noted.size(), std::memory_order_release);
}

void renew_by(Renew renew) {
  Renewals& all = renewals();
  const std::lock_guard guard(all.mutex);
  all.renew = renew;
}

}  // namespace collectives::tensorflow
