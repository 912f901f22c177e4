#include "engine/directory.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/error.h"

namespace collectives {
namespace {

struct Directory {
  std::mutex mutex;
  std::map<std::int64_t, std::weak_ptr<Communicator>> communicators;
  std::map<std::weak_ptr<Communicator>, std::int64_t, std::owner_less<>> numbers;
  std::int64_t next = 1;
};

// Never deleted: threads of a framework may still ask while the process ends.
Directory& directory() {
  static auto* const made = new Directory;
  return *made;
}

}  // namespace

std::int64_t number_of(const std::shared_ptr<Communicator>& communicator) {
  Directory& all = directory();
  const std::lock_guard guard(all.mutex);
  if (const auto known = all.numbers.find(communicator); known != all.numbers.end()) {
    return known->second;
  }
  std::erase_if(all.communicators, [](const auto& entry) { return entry.second.expired(); });
  std::erase_if(all.numbers, [](const auto& entry) { return entry.first.expired(); });
  all.communicators.emplace(all.next, communicator);
  all.numbers.emplace(communicator, all.next);
  return all.next++;
}

void renumber(std::int64_t number, const std::shared_ptr<Communicator>& communicator) {
  Directory& all = directory();
  const std::lock_guard guard(all.mutex);
  std::erase_if(all.numbers, [number](const auto& entry) { return entry.second == number; });
  all.communicators[number] = communicator;
  all.numbers[communicator] = number;
}

std::shared_ptr<Communicator> communicator_by_number(std::int64_t number) {
  Directory& all = directory();
  const std::lock_guard guard(all.mutex);
  const auto found = all.communicators.find(number);
  std::shared_ptr<Communicator> communicator = found != all.communicators.end() ? found->second.lock() : nullptr;
  if (communicator == nullptr) {
    throw CollectivesError(ErrorKind::kClosed,
                           "communicator " + std::to_string(number) +
                               " does not exist in this process (any more): it belonged to another process or was "
                               "deleted; trace the function again with a communicator that is open",
                           {});
  }
  return communicator;
}

}  // namespace collectives
