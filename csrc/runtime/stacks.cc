#include "runtime/stacks.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <system_error>
#include <thread>

#include "core/domain.h"
#include "runtime/recorder_text.h"

namespace collectives {
namespace {

constexpr std::size_t kNonceBytes = 32;  // hexadecimal digits
constexpr std::size_t kPageBytes = 32 << 10;

struct StackPage {
  char nonce[kNonceBytes];
  std::atomic<std::uint32_t> handled;   // the signal has our handler
  std::atomic<std::uint32_t> asked;     // how often
  std::atomic<std::uint32_t> answered;  // the value of `asked` that the text is for
  std::atomic<std::uint32_t> bytes;
  char text[kPageBytes - kNonceBytes - 16];
};
static_assert(sizeof(StackPage) == kPageBytes);

StackPage* g_page = nullptr;
int g_descriptor = -1;
pid_t g_owner = -1;
std::string g_place;
char g_folder[4096] = "";
void (*g_python_handler)(int) = nullptr;
std::atomic_flag g_writing = ATOMIC_FLAG_INIT;

// In a handler: has the stack of this thread written to the page; nothing in `stack` when somebody else is at it.
std::string_view write_stack() {
  if (g_python_handler == nullptr || g_page == nullptr || g_writing.test_and_set(std::memory_order_acquire)) {
    return {};
  }
  constexpr auto kText = static_cast<off_t>(offsetof(StackPage, text));
  lseek(g_descriptor, kText, SEEK_SET);
  g_python_handler(stack_signal());
  const off_t end = std::min<off_t>(lseek(g_descriptor, 0, SEEK_CUR), kPageBytes);
  const auto bytes = static_cast<std::uint32_t>(end - kText);
  g_page->bytes.store(bytes, std::memory_order_release);
  g_writing.clear(std::memory_order_release);
  return {g_page->text, bytes};
}

void answer(int /*signal*/) {
  const int saved = errno;
  if (g_page != nullptr && getpid() == g_owner) {
    const std::uint32_t asked = g_page->asked.load(std::memory_order_acquire);
    if (asked != g_page->answered.load(std::memory_order_relaxed)) {
      write_stack();
      g_page->answered.store(asked, std::memory_order_release);
    }
  }
  errno = saved;
}

void dump_all(int /*signal*/) {
  const int saved = errno;
  if (getpid() == g_owner) {
    std::string_view stack = write_stack();
    Recorder::for_each(
        [](const Recorder& recorder, void* argument) {
          dump(recorder, recorder_folder(), "SIGUSR2", *static_cast<const std::string_view*>(argument));
        },
        &stack);
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

void (*handler_of(int signal))(int) {
  struct sigaction action{};
  return sigaction(signal, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 ? action.sa_handler : nullptr;
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
  }
}

std::string field(const StackPlace& place, int index) {
  std::istringstream in(place);
  std::string word;
  for (int i = 0; i <= index && in >> word; ++i) {
  }
  return in ? word : std::string();
}

// The page of another process, or of this one.
class MappedPage {
 public:
  MappedPage(const StackPlace& place, int pid) {
    const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + field(place, 1);
    const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
    void* memory = MAP_FAILED;
    if (descriptor >= 0) {
      memory = lseek(descriptor, 0, SEEK_END) == static_cast<off_t>(kPageBytes)
                   ? mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
                   : MAP_FAILED;
      close(descriptor);
    }
    error_ = memory == MAP_FAILED ? errno : 0;
    if (memory != MAP_FAILED) {
      page_ = static_cast<StackPage*>(memory);
      known_ = field(place, 2) == std::string_view(page_->nonce, kNonceBytes);
    }
  }
  ~MappedPage() {
    if (page_ != nullptr) {
      munmap(page_, kPageBytes);
    }
  }
  MappedPage(const MappedPage&) = delete;
  MappedPage& operator=(const MappedPage&) = delete;
  StackPage* operator->() const { return page_; }
  bool good() const { return page_ != nullptr && known_; }
  std::string why() const { return page_ != nullptr ? "another process has its number" : std::strerror(error_); }

 private:
  StackPage* page_ = nullptr;
  bool known_ = false;
  int error_ = 0;
};

// The letter that the kernel has for the state of a thread, 0 when there is no such thread.
char state_of(int pid, int thread) {
  const std::string path = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(thread) + "/stat";
  char text[512] = {};
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return 0;
  }
  const ssize_t got = read(descriptor, text, sizeof text - 1);
  close(descriptor);
  const char* name_end = got > 0 ? std::strrchr(text, ')') : nullptr;
  return name_end != nullptr && name_end[1] == ' ' ? name_end[2] : '\0';
}

}  // namespace

int open_stack_page(const std::string& machine) {
  if (g_page != nullptr) {
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
  if (memory == MAP_FAILED) {
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

bool same_machine(const StackPlace& a, const StackPlace& b) { return !a.empty() && field(a, 0) == field(b, 0); }

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

std::string look_at_thread(const StackPlace& place, int pid, int thread, double patience_s) {
  const MappedPage page(place, pid);
  if (!page.good()) {
    return "nothing is known of its process (" + page.why() + ")";
  }
  const std::string who = thread == pid ? "its main thread" : "its thread " + std::to_string(thread);
  switch (state_of(pid, thread)) {
    case 0:
      return who + " has ended";
    case 'Z':
    case 'X':
      return "its process has ended";
    case 'T':
      return "its process is stopped (SIGSTOP or the like), so it has no Python stack to show; SIGCONT lets it go on";
    case 't':
      return "its process is stopped by a debugger, so it has no Python stack to show";
    default:
      break;
  }
  if (page->handled.load(std::memory_order_acquire) == 0) {
    return "it is alive, and shows no Python stack, since its signal handlers are switched off (COLLECTIVES_SIGNALS)";
  }
  const std::uint32_t asked = page->asked.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (syscall(SYS_tgkill, pid, thread, stack_signal()) != 0) {
    return "it is alive, but cannot be asked where it is: " + std::string(std::strerror(errno));
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_s);
  // The signal was sent after the question was asked, so whoever answers later answers this one, too.
  while (static_cast<std::int32_t>(page->answered.load(std::memory_order_acquire) - asked) < 0) {
    if (std::chrono::steady_clock::now() > until) {
      return std::string("it is alive (state ") + state_of(pid, thread) +
             "), but did not say where it is: it may be blocked in the kernel";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::size_t bytes = std::min<std::size_t>(page->bytes.load(std::memory_order_acquire), sizeof(StackPage::text));
  std::string text;
  std::istringstream in(std::string(page->text, bytes));
  constexpr int kMostLines = 24;
  int lines = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("  ") && ++lines <= kMostLines) {  // the first line names the thread
      text += "\n" + line;
    }
  }
  if (lines > kMostLines) {
    text += "\n  ... and " + std::to_string(lines - kMostLines) + " more";
  }
  return text.empty() ? "it is alive, and " + who + " runs no Python code"
                      : "it is alive, and " + who + " is at (innermost call first):" + text;
}

}  // namespace collectives
