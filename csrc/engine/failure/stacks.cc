#include "engine/failure/stacks.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <system_error>

#include "engine/failure/stacks_page.h"
#include "recorder/recorder_text.h"

namespace collectives {
namespace {

StackPage* g_page = nullptr;
int g_descriptor = -1;
pid_t g_owner = -1;
std::string g_place;
char g_folder[4096] = "";
void (*g_python_handler)(int) = nullptr;
std::atomic_flag g_writing = ATOMIC_FLAG_INIT;
struct stat g_identity{};  // of the page

void (*handler_of(int signal))(int) {
  struct sigaction action{};
  return sigaction(signal, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 ? action.sa_handler : nullptr;
}

void answer(int signal);

// A program may close descriptors that are not its own, and open others, which have the same numbers.
bool descriptor_is_page() {
  struct stat now{};
  return fstat(g_descriptor, &now) == 0 && now.st_ino == g_identity.st_ino && now.st_dev == g_identity.st_dev;
}

// In a handler, while it lives: the stack of this thread in the page.
class OwnStack {
 public:
  OwnStack() {
    // Without our handler faulthandler has ended, with the interpreter or by itself, and must not be called any more.
    if (g_python_handler == nullptr || g_page == nullptr || handler_of(stack_signal()) != &answer ||
        g_writing.test_and_set(std::memory_order_acquire)) {
      return;
    }
    writing_ = true;
    g_page->version.fetch_add(1, std::memory_order_acq_rel);
    constexpr auto kText = static_cast<off_t>(offsetof(StackPage, text));
    if (!descriptor_is_page() || lseek(g_descriptor, kText, SEEK_SET) != kText) {
      return;
    }
    g_python_handler(stack_signal());
    const off_t end = std::min<off_t>(lseek(g_descriptor, 0, SEEK_CUR), kPageBytes);
    if (end < kText) {
      return;  // closed meanwhile
    }
    there_ = true;
    g_page->bytes.store(static_cast<std::uint32_t>(end - kText), std::memory_order_relaxed);
    g_page->thread.store(static_cast<std::uint32_t>(syscall(SYS_gettid)), std::memory_order_relaxed);
  }
  ~OwnStack() {
    if (writing_) {
      g_page->version.fetch_add(1, std::memory_order_release);
      g_writing.clear(std::memory_order_release);
    }
  }
  OwnStack(const OwnStack&) = delete;
  OwnStack& operator=(const OwnStack&) = delete;
  // False when another thread writes it, or it cannot be written.
  bool there() const { return there_; }
  std::string_view text() const {
    const std::size_t bytes = there_ ? g_page->bytes.load(std::memory_order_relaxed) : 0;
    return {g_page != nullptr ? g_page->text : "", std::min(bytes, sizeof g_page->text)};
  }

 private:
  bool writing_ = false;
  bool there_ = false;
};

void answer(int /*signal*/) {
  const int saved = errno;
  if (g_page != nullptr && getpid() == g_owner) {
    const std::uint32_t asked = g_page->asked.load(std::memory_order_acquire);
    const OwnStack stack;
    if (stack.there()) {
      g_page->answered.store(asked, std::memory_order_relaxed);
    }
  }
  errno = saved;
}

void dump_all(int /*signal*/) {
  const int saved = errno;
  if (getpid() == g_owner) {
    const OwnStack stack;
    std::string_view text = stack.text();
    Recorder::for_each(
        [](const Recorder& recorder, void* argument) {
          dump(recorder, recorder_folder(), "SIGUSR2", *static_cast<const std::string_view*>(argument));
        },
        &text);
  }
  errno = saved;
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;  // on the ordinary stack: an alternate one may be too small for dumps
  sigemptyset(&action.sa_mask);
  if (sigaction(signal, &action, nullptr) != 0) {
    throw std::system_error(errno, std::generic_category(), "sigaction");
  }
}

// A forked child is no rank: it neither answers for its parent nor keeps the page, and signals do what they did before.
void after_fork_in_child() {
  for (const auto& [signal, handler] : {std::pair{stack_signal(), &answer}, std::pair{SIGUSR2, &dump_all}}) {
    if (handler_of(signal) == handler) {
      std::signal(signal, SIG_DFL);
    }
  }
  if (g_page != nullptr) {
    munmap(g_page, kPageBytes);
    close(g_descriptor);
    g_page = nullptr;
    g_descriptor = -1;
    g_place.clear();
    g_writing.clear();
    g_python_handler = nullptr;
  }
}

}  // namespace

int open_stack_page(const std::string& machine) {
  if (g_page != nullptr) {
    // The program may have a handler of its own by now.
    const bool ours = handler_of(stack_signal()) == &answer && descriptor_is_page();
    g_page->handled.store(ours ? 1 : 0, std::memory_order_release);
    return g_descriptor;
  }
  const int descriptor = memfd_create("rank-stack", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) {
    return -1;
  }
  void* memory = MAP_FAILED;
  unsigned char bytes[kNonceBytes / 2];
  if (ftruncate(descriptor, kPageBytes) == 0 && fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0 &&
      getrandom(bytes, sizeof bytes, 0) == static_cast<ssize_t>(sizeof bytes)) {
    memory = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  }
  if (memory == MAP_FAILED || fstat(descriptor, &g_identity) != 0) {
    close(descriptor);
    return -1;
  }
  g_page = static_cast<StackPage*>(memory);
  for (std::size_t i = 0; i < kNonceBytes; ++i) {
    g_page->nonce[i] = "0123456789abcdef"[bytes[i / 2] >> (i % 2 * 4) & 15];
  }
  g_descriptor = descriptor;
  g_owner = getpid();
  g_place = machine + " " + std::to_string(descriptor) + " " + std::string(g_page->nonce, kNonceBytes);
  static const int handlers = pthread_atfork(nullptr, nullptr, after_fork_in_child);
  (void)handlers;
  return g_descriptor;
}

StackPlace own_stack_place() { return g_place; }

// One of those that programs may choose, far from the ends, where other libraries take theirs.
int stack_signal() { return SIGRTMAX - 7; }

bool signal_is_free(int signal) {
  struct sigaction action{};
  return sigaction(signal, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 &&
         action.sa_handler == SIG_DFL;
}

void take_over_stack_signal() {
  g_python_handler = handler_of(stack_signal());
  handle(stack_signal(), answer);
  g_page->handled.store(1, std::memory_order_release);
}

void dump_on_signal() { handle(SIGUSR2, dump_all); }

void set_recorder_folder(const std::string& folder) { std::snprintf(g_folder, sizeof g_folder, "%s", folder.c_str()); }

std::string_view recorder_folder() { return g_folder; }

int thread_number() {
  thread_local const int number = static_cast<int>(syscall(SYS_gettid));
  return number;
}

}  // namespace collectives
