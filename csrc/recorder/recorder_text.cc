#include "recorder/recorder_text.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "core/say.h"

namespace collectives {
namespace {

// How long to wait for a reader where stderr is a pipe that is full.
constexpr auto kStderrTimeout = std::chrono::milliseconds(500);

void put_to_descriptor(void* argument, const char* text, std::size_t bytes) {
  const int descriptor = *static_cast<const int*>(argument);
  if (descriptor == STDERR_FILENO) {
    return say({text, bytes}, kStderrTimeout);
  }
  while (bytes > 0) {
    const ssize_t written = write(descriptor, text, bytes);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return;  // an error here cannot be reported anywhere
    }
    text += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

struct Path {
  char text[4096];
  std::size_t used = 0;
  Path& add(std::string_view more) {
    const std::size_t bytes = std::min(more.size(), sizeof text - 1 - used);
    std::memcpy(text + used, more.data(), bytes);
    used += bytes;
    text[used] = '\0';
    return *this;
  }
  Path& add(std::int64_t number) {
    char digits[24];
    const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
    return add(std::string_view(digits, static_cast<std::size_t>(end - digits)));
  }
};

void write_entry(const Recorded& r, const CounterClock& clock, TextWriter& out) {
  constexpr std::string_view kStates[] = {"queued", "active", "done", "failed"};
  const auto key = [&](std::string_view name) -> TextWriter& { return out.text(", \"").text(name).text("\": "); };
  const auto number = [&](std::string_view name, std::int64_t value, bool there) {
    there ? key(name).number(value) : key(name).text("null");
  };
  const auto word = [&](std::string_view name, std::string_view value, bool there) {
    there ? key(name).quoted(value) : key(name).text("null");
  };
  const auto time = [&](std::string_view name, std::uint64_t count) {
    count != 0 ? key(name).seconds(clock.nanoseconds_of(count)) : key(name).text("null");
  };
  const bool data = r.collective != Collective::kBarrier;
  out.text("{\"communicator\": ").number(r.communicator);
  number("sequence", static_cast<std::int64_t>(r.sequence), !r.is_message());
  word("collective", r.is_message() ? (r.sending ? "send" : "recv") : name(r.collective), true);
  word("op", name(r.op), reduces(r.collective));
  number("root", r.root, has_root(r.collective));
  number("peer", r.peer, r.is_message() && r.peer >= 0);
  number("tag", r.tag, r.is_message());
  word("dtype", name(r.dtype), data);
  number("elements", data ? r.elements() : 0, true);
  number("bytes", data ? r.bytes : 0, true);
  number("tensors", data ? r.tensors : 0, true);
  word("algorithm", r.algorithm == nullptr ? std::string_view() : std::string_view(r.algorithm),
       r.algorithm != nullptr);
  word("name", r.name, r.name[0] != '\0');
  word("state", kStates[static_cast<int>(r.state)], true);
  time("posted", r.posted);
  time("started", r.started);
  time("ended", r.ended);
  out.text("}");
}

}  // namespace

TextWriter& TextWriter::text(std::string_view text) {
  while (!text.empty()) {
    if (used_ == sizeof buffer_) {
      flush();
    }
    const std::size_t bytes = std::min(text.size(), sizeof buffer_ - used_);
    std::memcpy(buffer_ + used_, text.data(), bytes);
    used_ += bytes;
    text.remove_prefix(bytes);
  }
  return *this;
}

void TextWriter::flush() {
  if (used_ > 0) {
    put_(argument_, buffer_, used_);
  }
  used_ = 0;
}

TextWriter& TextWriter::number(std::int64_t number) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  return text(std::string_view(digits, static_cast<std::size_t>(end - digits)));
}

TextWriter& TextWriter::seconds(std::int64_t nanoseconds) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  number(nanoseconds / kSecond).text(".");
  char digits[9];
  std::int64_t rest = nanoseconds % kSecond;
  for (int i = 8; i >= 0; --i) {
    digits[i] = static_cast<char>('0' + rest % 10);
    rest /= 10;
  }
  return text(std::string_view(digits, sizeof digits));
}

// Does not check for valid UTF-8: names are text of Python, which always is.
TextWriter& TextWriter::quoted(std::string_view value) {
  constexpr char kHex[] = "0123456789abcdef";
  text("\"");
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text("\\").text(std::string_view(&c, 1));
    } else if (byte < 0x20 || byte == 0x7f) {
      const char escape[] = {'\\', 'u', '0', '0', kHex[byte >> 4], kHex[byte & 15]};
      text(std::string_view(escape, sizeof escape));
    } else {
      text(std::string_view(&c, 1));
    }
  }
  return text("\"");
}

void write_json(const Recorder& recorder, std::string_view why, std::string_view stack, TextWriter& out) {
  const CounterClock clock;
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  out.text("{\"version\": 1, \"rank\": ").number(recorder.rank()).text(", \"size\": ").number(recorder.size());
  out.text(", \"host\": ").quoted(host).text(", \"pid\": ").number(getpid());
  out.text(", \"time\": ").seconds(clock.now_ns).text(", \"why\": ").quoted(why);
  out.text(", \"stack\": ");
  stack.empty() ? out.text("null") : out.quoted(stack);
  out.text(", \"entries\": [");
  const std::uint64_t count = recorder.count();
  bool first = true;
  for (std::uint64_t n = count > Recorder::kKept ? count - Recorder::kKept : 0; n < count; ++n) {
    Recorded recorded;
    if (recorder.read(n, &recorded)) {
      out.text(first ? "\n" : ",\n");
      write_entry(recorded, clock, out);
      first = false;
    }
  }
  out.text("]}\n");
}

void dump(const Recorder& recorder, std::string_view folder, std::string_view why, std::string_view stack) {
  Path path;
  Path said;
  said.add("collectives: ").add("rank ").add(recorder.rank());
  int descriptor = STDERR_FILENO;
  if (!folder.empty()) {
    path.add(folder).add("/collectives-recorder-rank").add(recorder.rank()).add("-pid").add(getpid());
    if (recorder.world() > 1) {
      path.add("-world").add(recorder.world());
    }
    path.add(".json");
    // Written under another name first, so that readers never see half a file. The name is different for each dump,
    // since several communicators may fail at once, and cannot be guessed: another user who may write in the folder
    // could put a link there.
    std::uint32_t random = 0;
    [[maybe_unused]] const ssize_t filled = getrandom(&random, sizeof random, GRND_NONBLOCK);
    static std::atomic<std::int64_t> dumps{0};
    Path other = path;
    other.add(".").add(dumps.fetch_add(1, std::memory_order_relaxed)).add("-").add(random).add(".part");
    descriptor = open(other.text, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (descriptor >= 0) {
      {
        TextWriter out(put_to_descriptor, &descriptor);
        write_json(recorder, why, stack, out);
      }
      close(descriptor);
      if (rename(other.text, path.text) == 0) {
        said.add(" wrote the recorder of its last collectives to ").add(path.text).add(" (").add(why).add(")\n");
      } else {
        said.add(" wrote the recorder of its last collectives to ")
            .add(other.text)
            .add(", since it cannot be renamed to ");
        said.add(path.text).add(" (errno ").add(errno).add("; ").add(why).add(")\n");
      }
      say({said.text, said.used}, kStderrTimeout);
      return;
    }
    said.add(" cannot write its recorder to ").add(other.text).add(" (errno ").add(errno).add("); it follows\n");
    descriptor = STDERR_FILENO;
  } else {
    said.add(" writes the recorder of its last collectives to stderr (").add(why);
    said.add("); set COLLECTIVES_RECORDER_DIR for a file\n");
  }
  put_to_descriptor(&descriptor, said.text, said.used);
  TextWriter out(put_to_descriptor, &descriptor);
  write_json(recorder, why, stack, out);
}

}  // namespace collectives
