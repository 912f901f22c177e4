#include "bindings/tensorflow/renewal.h"

#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "core/error.h"
#include "runtime/directory.h"

namespace collectives::tensorflow {
namespace {

struct Renewals {
  std::mutex mutex;
  std::map<std::int64_t, std::int64_t> steps;  // by number: the step that has told of a mismatch
  std::atomic<std::size_t> count{0};           // of these, so that a call needs no lock where there are none
  Renew renew = nullptr;
};

// Never deleted: threads of TensorFlow may still ask while the process ends.
Renewals& renewals() {
  static auto* const made = new Renewals;
  return *made;
}

}  // namespace

std::shared_ptr<Communicator> renewed(std::int64_t number, std::int64_t step) {
  Renewals& all = renewals();
  if (all.count.load(std::memory_order_acquire) > 0) {
    Renew renew = nullptr;
    {
      const std::lock_guard guard(all.mutex);
      const auto found = all.steps.find(number);
      if (found != all.steps.end() && found->second != step) {
        renew = all.renew;
      }
    }
    if (renew != nullptr) {
      std::string problem(4096, '\0');
      renew(number, problem.data(), problem.size());
      if (problem.resize(problem.find('\0')); !problem.empty()) {
        throw CollectivesError(ErrorKind::kPeer, problem, {});
      }
      const std::lock_guard guard(all.mutex);
      all.steps.erase(number);
      all.count.store(all.steps.size(), std::memory_order_release);
    }
  }
  return communicator_by_number(number);
}

bool take_note(std::int64_t number) {
  Renewals& all = renewals();
  const std::lock_guard guard(all.mutex);
  const bool noted = all.steps.erase(number) > 0;
  all.count.store(all.steps.size(), std::memory_order_release);
  return noted;
}

void note_mismatch(std::int64_t number, std::int64_t step, const Communicator& communicator) {
  if (communicator_by_number(number).get() != &communicator) {
    return;
  }
  Renewals& all = renewals();
  const std::lock_guard guard(all.mutex);
  all.steps[number] = step;
  all.count.store(all.steps.size(), std::memory_order_release);
}

void renew_by(Renew renew) {
  Renewals& all = renewals();
  const std::lock_guard guard(all.mutex);
  all.renew = renew;
}

}  // namespace collectives::tensorflow
