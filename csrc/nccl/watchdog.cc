#include "nccl/watchdog.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "core/thread.h"
#include "nccl/communicator.h"

namespace collectives {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(5);

class Watchdog {
 public:
  Watchdog() {
    start_thread("collectives-gpu", "monitors calls of NCCL", [this] { run(); }).detach();
  }

  void monitor(const std::shared_ptr<NcclCommunicator>& communicator) {
    const std::lock_guard guard(mutex_);
    const bool known = std::any_of(monitored_.begin(), monitored_.end(),
                                   [&](const auto& entry) { return entry.lock() == communicator; });
    if (!known) {
      monitored_.push_back(communicator);
      wake_.notify_one();
    }
  }

 private:
  void run() {
    for (;;) {
      std::vector<std::weak_ptr<NcclCommunicator>> all;
      {
        std::unique_lock guard(mutex_);
        std::erase_if(monitored_, [](const auto& entry) {
          const auto communicator = entry.lock();
          return communicator == nullptr || communicator->idle();
        });
        wake_.wait(guard, [&] { return !monitored_.empty(); });
        all = monitored_;
      }
      for (const auto& entry : all) {
        if (const auto communicator = entry.lock(); communicator != nullptr) {
          communicator->check_pending();
        }
      }
      std::this_thread::sleep_for(kInterval);
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::weak_ptr<NcclCommunicator>> monitored_;
};

}  // namespace

void monitor(const std::shared_ptr<NcclCommunicator>& communicator) {
  static auto* const watchdog = new Watchdog;  // its thread runs until the process ends
  watchdog->monitor(communicator);
}

}  // namespace collectives
