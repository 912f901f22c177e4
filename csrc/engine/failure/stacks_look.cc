// How a process looks where a thread of another one is: see stacks.h.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "engine/failure/stacks.h"
#include "engine/failure/stacks_page.h"
#include "memory/domain.h"

namespace collectives {
namespace {

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
    if (descriptor < 0) {
      why_ = std::strerror(errno);
      return;
    }
    if (lseek(descriptor, 0, SEEK_END) == static_cast<off_t>(kPageBytes)) {
      if (void* memory = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
          memory != MAP_FAILED) {
        page_ = static_cast<StackPage*>(memory);
        known_ = field(place, 2) == std::string_view(page_->nonce, kNonceBytes);
      }
    }
    close(descriptor);
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
  const std::string& why() const { return why_; }

 private:
  StackPage* page_ = nullptr;
  bool known_ = false;
  std::string why_ = "another process or file has its number";
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

// Whether the process has a handler for the signal: the default action of the one by which we ask is to end it.
bool catches(int pid, int signal) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/status");
  constexpr std::string_view kKey = "SigCgt:";
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(kKey)) {
      return (std::strtoull(line.c_str() + kKey.size(), nullptr, 16) >> (signal - 1) & 1) != 0;
    }
  }
  return false;
}

// The stack of the thread that answers question `asked`, when the page has it and no thread writes meanwhile.
std::optional<std::string> read_stack(const MappedPage& page, int thread, std::uint32_t asked) {
  const std::uint32_t version = page->version.load(std::memory_order_acquire);
  if (version % 2 != 0 || page->thread.load(std::memory_order_relaxed) != static_cast<std::uint32_t>(thread) ||
      static_cast<std::int32_t>(page->answered.load(std::memory_order_relaxed) - asked) < 0) {
    return std::nullopt;
  }
  const std::size_t bytes = std::min<std::size_t>(page->bytes.load(std::memory_order_relaxed), sizeof(StackPage::text));
  std::string text(page->text, bytes);
  // Adding nothing, instead of a load, keeps what was read before from being read after it.
  const bool same = page->version.fetch_add(0, std::memory_order_acq_rel) == version;
  return same ? std::optional(std::move(text)) : std::nullopt;
}

}  // namespace

bool same_machine(const StackPlace& a, const StackPlace& b) { return !a.empty() && field(a, 0) == field(b, 0); }

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
    return "it is alive, and shows no Python stack, since it has no signal handler for that: "
           "COLLECTIVES_SIGNALS is 0, or the program has a handler of its own";
  }
  // Several ranks may ask one page, each for another thread, and a thread that writes keeps the others out. So a rank
  // without an answer asks again once the page has changed; not at once, and not all after the same time, because each
  // would undo the answer of another.
  const auto interval = std::chrono::milliseconds(10 + 7 * (thread_number() % 8));
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_s);
  auto again = std::chrono::steady_clock::now();
  bool first = true;
  std::uint32_t asked = 0;
  std::uint32_t version = 0;
  std::optional<std::string> stack;
  while (!(stack = first ? std::nullopt : read_stack(page, thread, asked))) {
    const auto now = std::chrono::steady_clock::now();
    if (now > until) {
      const char state = state_of(pid, thread);
      return state == 0 ? who + " has ended"
                        : std::string("it is alive (state ") + state +
                              "), but did not say where it is: it may be blocked in the kernel";
    }
    if (first || (now > again && page->version.load(std::memory_order_acquire) != version)) {
      if (!catches(pid, stack_signal())) {
        return "it is alive, and shows no Python stack, since it has no signal handler for that any more: its "
               "interpreter has ended, or the program has taken the handler away";
      }
      first = false;
      again = now + interval;
      version = page->version.load(std::memory_order_acquire);
      asked = page->asked.fetch_add(1, std::memory_order_acq_rel) + 1;
      if (syscall(SYS_tgkill, pid, thread, stack_signal()) != 0) {
        return "it is alive, but cannot be asked where it is: " + std::string(std::strerror(errno));
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  std::string text;
  std::istringstream in(*stack);
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
