#include "core/say.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>

namespace collectives {
namespace {

// Where stderr leads, in a way that does not block. The flag O_NONBLOCK of stderr itself is shared with all processes
// that have it, which do not expect it; so a pipe or a terminal is opened once more.
class Stderr {
 public:
  Stderr() {
    struct stat status{};
    if (fstat(STDERR_FILENO, &status) != 0) {
      return;
    }
    socket_ = S_ISSOCK(status.st_mode);
    if (S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode)) {
      opened_ = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    }
    waits_ = !socket_ && opened_ < 0 && !S_ISREG(status.st_mode);
  }
  ~Stderr() {
    if (opened_ >= 0) {
      close(opened_);
    }
  }
  Stderr(const Stderr&) = delete;
  Stderr& operator=(const Stderr&) = delete;

  ssize_t write(const char* text, std::size_t bytes) const {
    if (socket_) {
      return send(STDERR_FILENO, text, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    if (waits_) {
      // It could not be opened once more. A pipe that is writable at all has room for PIPE_BUF bytes.
      if (!has_room(0)) {
        errno = EAGAIN;
        return -1;
      }
      bytes = std::min<std::size_t>(bytes, PIPE_BUF);
    }
    return ::write(opened_ >= 0 ? opened_ : STDERR_FILENO, text, bytes);
  }

  bool has_room(int milliseconds) const {
    pollfd descriptor{STDERR_FILENO, POLLOUT, 0};
    return poll(&descriptor, 1, milliseconds) > 0;
  }

 private:
  bool socket_ = false;
  bool waits_ = false;  // a write may block
  int opened_ = -1;
};

}  // namespace

void say(std::string_view text, std::chrono::milliseconds patience) noexcept {
  const int error = errno;  // of the code that a signal handler has interrupted
  const Stderr to;
  constexpr int kVain = 3;  // attempts that follow each other
  for (int vain = 0; !text.empty() && vain < kVain;) {
    const ssize_t written = to.write(text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
      vain = 0;
    } else if (written == 0 || (errno != EINTR && errno != EAGAIN) ||
               (errno == EAGAIN && !to.has_room(static_cast<int>(patience.count())))) {
      break;
    } else {
      ++vain;
    }
  }
  errno = error;
}

}  // namespace collectives
