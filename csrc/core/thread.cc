#include "core/thread.h"

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <utility>

namespace collectives {

std::thread start_thread(const char* name, const std::string& purpose, std::function<void()> body) {
  struct Masked {
    Masked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Masked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    Masked(const Masked&) = delete;
    Masked& operator=(const Masked&) = delete;
    sigset_t before{};
  };
  try {
    const Masked masked;
    std::thread thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (const std::system_error& error) {
    throw std::system_error(error.code(), "no thread can be started that " + purpose +
                                              " (raise the limit of processes: ulimit -u, or pids.max of the "
                                              "container; or that of the address space: ulimit -v)");
  }
}

}  // namespace collectives
