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

struct Noted {
  std::optional<std::int64_t> step;  // that has told of a mismatch; none: a call beside the ops
  bool renewing = false;             // by one thread; others wait for that, as long as ranks may take to meet
};

struct Renewals {
  std::mutex mutex;
  std::condition_variable over;
  std::map<std::int64_t, Noted> noted;  // by number
  std::atomic<std::size_t> count{0};    // of these, so that a call needs no lock where there are none
  Renew renew = nullptr;
};

// Never deleted: threads of TensorFlow may still ask while the process ends.
Renewals& renewals() {
  static auto* const made = new Renewals;
  return *made;
}

void renew_now(std::int64_t number, std::optional<std::int64_t> step) {
  Renewals& all = renewals();
  std::string problem(4096, '\0');  // before others have to wait for this thread
  std::unique_lock lock(all.mutex);
  all.over.wait(lock, [&] {
    const auto found = all.noted.find(number);
    return found == all.noted.end() || !found->second.renewing;
  });
  const auto found = all.noted.find(number);
  if (found == all.noted.end() || (step && found->second.step == step)) {
    return;
  }
  found->second.renewing = true;  // from here on nobody else takes it away
  const Renew renew = all.renew;
  lock.unlock();
  renew(number, problem.data(), problem.size());  // all ranks meet in there
  problem.resize(problem.find('\0'));
  lock.lock();
  found->second.renewing = false;
  if (problem.empty()) {
    all.noted.erase(found);
    all.count.store(all.noted.size(), std::memory_order_release);
  }
  all.over.notify_all();
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

void note_mismatch(std::int64_t number, std::optional<std::int64_t> step, const Communicator& communicator) noexcept {
  try {
    if (communicator_by_number(number).get() != &communicator) {
      return;  // it has been renewed since
    }
    Renewals& all = renewals();
    const std::lock_guard guard(all.mutex);
    all.noted[number].step = step;
    all.count.store(all.noted.size(), std::memory_order_release);
  } catch (const std::exception&) {
    return;  // as the header says; or the program has dropped the group
  }
}

void renew_by(Renew renew) {
  Renewals& all = renewals();
  const std::lock_guard guard(all.mutex);
  all.renew = renew;
}

}  // namespace collectives::tensorflow
