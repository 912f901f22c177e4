// Random traffic over TCP links against a model, and what the other tests of the link share with it.
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "transports/tcp/link.h"

#define CHECK(condition, ...) check_that(condition, __FILE__, __LINE__, #condition, "" __VA_ARGS__)

[[gnu::format(printf, 5, 6)]] inline void check_that(bool holds, const char* file, int line, const char* condition,
                                                     const char* format, ...) {
  if (!holds) {
    std::fprintf(stderr, "%s:%d: %s: ", file, line, condition);
    va_list values;
    va_start(values, format);
    std::vfprintf(stderr, format, values);
    va_end(values);
    std::fprintf(stderr, "\n");
    std::_Exit(1);
  }
}

namespace tcp_link_test {

using namespace collectives;  // NOLINT
using Kind = LinkEvent::Kind;
using Random = std::mt19937_64;
using Bytes = std::vector<std::byte>;

inline std::int64_t pick(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

// A frame whose payload is text.
inline Bytes text_frame(wire::FrameType type, const std::string& text) {
  wire::FrameHeader header;
  header.type = type;
  header.length = static_cast<std::uint32_t>(text.size());
  Bytes frame(wire::kHeaderBytes + text.size());
  wire::encode(header, frame.data());
  std::memcpy(frame.data() + wire::kHeaderBytes, text.data(), text.size());
  return frame;
}

inline std::pair<int, int> unix_pair() {
  int fds[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
  return {fds[0], fds[1]};
}

// Socket buffers that hold much less than a frame.
inline std::pair<int, int> narrow_pair() {
  const auto fds = unix_pair();
  const int bytes = 2048;
  for (const int fd : {fds.first, fds.second}) {
    CHECK(::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)) == 0);
  }
  return fds;
}

inline std::pair<int, int> tcp_pair() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  CHECK(::bind(listener, reinterpret_cast<sockaddr*>(&address), length) == 0);
  CHECK(::listen(listener, 1) == 0);
  CHECK(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  const int a = ::socket(AF_INET, SOCK_STREAM, 0);
  CHECK(::connect(a, reinterpret_cast<sockaddr*>(&address), length) == 0);
  const int b = ::accept(listener, nullptr, nullptr);
  CHECK(b >= 0);
  ::close(listener);
  return {a, b};
}

// Passes bytes on between two sockets, 1 to 7 at a time, until both directions have ended.
inline void relay(int a, int b, std::uint64_t seed) {
  Random random(seed);
  bool live[2] = {true, true};
  const int from[2] = {a, b};
  const int to[2] = {b, a};
  while (live[0] || live[1]) {
    pollfd polls[2] = {{live[0] ? a : -1, POLLIN, 0}, {live[1] ? b : -1, POLLIN, 0}};
    ::poll(polls, 2, 1000);
    for (int i = 0; i < 2; ++i) {
      for (int burst = 0; burst < 64 && live[i]; ++burst) {
        char bytes[7];
        const ssize_t n = ::recv(from[i], bytes, static_cast<std::size_t>(pick(random, 1, 7)), MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) {
          break;
        }
        if (n <= 0 || ::send(to[i], bytes, static_cast<std::size_t>(n), MSG_NOSIGNAL) != n) {
          ::shutdown(to[i], SHUT_WR);
          live[i] = false;
        }
      }
    }
  }
  ::close(a);
  ::close(b);
}

inline std::byte pattern(std::uint64_t salt, std::int64_t i) {
  const std::uint64_t x = (salt + static_cast<std::uint64_t>(i)) * 0x9e3779b97f4a7c15U;
  return static_cast<std::byte>(x >> 56);
}

template <typename T>
void sum(void* const* destinations, int, const void* const* sources, int n, std::size_t count, double) {
  CHECK(n == 2);
  for (const void* p : {static_cast<const void*>(destinations[0]), sources[0], sources[1]}) {
    CHECK(reinterpret_cast<std::uintptr_t>(p) % sizeof(T) == 0);
  }
  for (std::size_t i = 0; i < count; ++i) {
    static_cast<T*>(destinations[0])[i] =
        static_cast<T>(static_cast<const T*>(sources[0])[i] + static_cast<const T*>(sources[1])[i]);
  }
}

// A buffer cut into random spans on element borders, some of them empty.
struct Cut {
  Bytes memory;
  std::vector<Span> spans;
  Buffer buffer;
  Cut(Random& random, std::int64_t bytes, std::int64_t element) : memory(static_cast<std::size_t>(bytes)) {
    const bool whole = pick(random, 0, 2) == 0;
    for (std::int64_t at = 0; at < bytes;) {
      std::int64_t part = whole ? bytes : pick(random, 0, 1 + (bytes - at) / element / pick(random, 1, 30)) * element;
      part = std::min(part, bytes - at);
      spans.push_back({memory.data() + at, part});
      at += part;
    }
    buffer = {spans.data(), static_cast<std::int64_t>(spans.size()), bytes};
  }
  Cut(const Cut&) = delete;
};

inline Signature signature_of(std::uint64_t sequence) {
  Signature s;
  s.root = static_cast<std::uint16_t>(sequence);
  s.count_hash = sequence * 77;
  return s;
}

struct Message {
  std::int64_t bytes = 0;
  bool token = false;
  int element = 0;  // 0: copy, else reduce
};

// Both ranks derive the plan from the seed. Message borders are the same on both sides unless both merge bytes.
struct Plan {
  StreamKey key;
  std::vector<Message> messages[2];  // sent by rank 0, by rank 1
};

inline std::vector<Plan> make_plan(std::uint64_t seed, int streams, std::int64_t most) {
  Random random(seed);
  std::vector<Plan> plans(static_cast<std::size_t>(streams));
  std::uint64_t sequence[3] = {0, 0, 0};
  for (Plan& p : plans) {
    p.key.communicator = static_cast<std::uint32_t>(pick(random, 0, 2));
    p.key.sequence = ++sequence[p.key.communicator];
    for (auto& list : p.messages) {
      for (std::int64_t n = pick(random, 0, 4); n > 0; --n) {
        Message m;
        m.token = pick(random, 0, 5) == 0;
        const std::int64_t limit = pick(random, 0, 3) == 0 ? most : std::min<std::int64_t>(most, 3000);
        m.bytes = m.token ? 0 : pick(random, 0, limit);
        const int elements[] = {0, 0, 1, 2, 4, 8};
        m.element = elements[pick(random, 0, 5)];
        if (m.element > 0) {
          m.bytes -= m.bytes % m.element;
        }
        list.push_back(m);
      }
    }
  }
  return plans;
}

// One rank's side of one stream.
struct Work {
  Stream stream;
  std::deque<Cut> memory;
  std::deque<SendRequest> sends;
  std::deque<ReceiveRequest> receives;
  std::vector<std::function<void()>> checks;
  std::size_t sends_posted = 0;
  std::size_t receives_posted = 0;

  bool done() const {
    return sends_posted == sends.size() && receives_posted == receives.size() && stream.sends.empty() &&
           stream.receives.empty();
  }
};

inline void build(Work& w, const Plan& plan, int rank, Random& random) {
  w.stream.key = plan.key;
  w.stream.signature = signature_of(plan.key.sequence);
  const auto salt = [&](int from, std::size_t i) {
    return plan.key.sequence * 1000003 + i * 10007 + static_cast<std::uint64_t>(from);
  };
  for (std::size_t i = 0; i < plan.messages[rank].size(); ++i) {
    const Message& m = plan.messages[rank][i];
    Cut& cut = w.memory.emplace_back(random, m.bytes, 1);
    for (std::int64_t k = 0; k < m.bytes; ++k) {
      cut.memory[static_cast<std::size_t>(k)] = pattern(salt(rank, i), k);
    }
    SendRequest& s = w.sends.emplace_back();
    s.source = SpanCursor(cut.buffer);
    s.remaining = m.bytes;
    s.token = m.token;
  }
  for (std::size_t i = 0; i < plan.messages[1 - rank].size(); ++i) {
    const Message& m = plan.messages[1 - rank][i];
    const std::int64_t element = std::max(1, m.element);
    Cut& to = w.memory.emplace_back(random, m.bytes, element);
    ReceiveRequest& r = w.receives.emplace_back();
    r.destination = SpanCursor(to.buffer);
    r.remaining = m.bytes;
    r.token = m.token;
    Cut* own = nullptr;
    if (m.element > 0) {
      own = pick(random, 0, 1) == 0 ? &to : &w.memory.emplace_back(random, m.bytes, element);
      for (std::int64_t k = 0; k < m.bytes; ++k) {
        own->memory[static_cast<std::size_t>(k)] = pattern(salt(2, i), k);
      }
      r.source = SpanCursor(own->buffer);
      r.element = static_cast<std::size_t>(element);
      r.reduce = element == 1   ? sum<std::uint8_t>
                 : element == 2 ? sum<std::uint16_t>
                 : element == 4 ? sum<std::uint32_t>
                                : sum<std::uint64_t>;
    }
    w.checks.push_back([=, &to, &r, s = salt(1 - rank, i), o = salt(2, i)] {
      CHECK(r.done && r.remaining == 0);
      for (std::int64_t k = 0; k < m.bytes; k += element) {
        std::uint64_t theirs = 0;
        std::uint64_t ours = 0;
        std::uint64_t have = 0;
        for (std::int64_t b = 0; b < element; ++b) {
          theirs |= static_cast<std::uint64_t>(pattern(s, k + b)) << (8 * b);
          ours |= static_cast<std::uint64_t>(pattern(o, k + b)) << (8 * b);
          have |= static_cast<std::uint64_t>(to.memory[static_cast<std::size_t>(k + b)]) << (8 * b);
        }
        const std::uint64_t mask = element == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * element)) - 1;
        CHECK(have == ((m.element > 0 ? theirs + ours : theirs) & mask), "byte %ld of %ld, element %ld",
              static_cast<long>(k), static_cast<long>(m.bytes), static_cast<long>(element));
      }
    });
  }
}

inline void run_rank(int fd, int rank, std::uint64_t seed, const std::vector<Plan>& plans) {
  Random random(seed * 2 + static_cast<std::uint64_t>(rank));
  auto link = make_tcp_link(fd, 1 - rank);
  std::list<Work> works;  // the link keeps the address of the stream
  std::size_t next = 0;
  const auto in_flight = static_cast<std::size_t>(pick(random, 1, 12));
  while (next < plans.size() || !works.empty()) {
    while (next < plans.size() && works.size() < in_flight && pick(random, 0, 3) != 0) {
      Work& w = works.emplace_back();
      build(w, plans[next++], rank, random);
      link->open(w.stream);
    }
    for (Work& w : works) {
      if (w.sends_posted < w.sends.size() && pick(random, 0, 2) == 0) {
        w.stream.sends.push_back(&w.sends[w.sends_posted++]);
      }
      if (w.receives_posted < w.receives.size() && pick(random, 0, 2) == 0) {
        w.stream.receives.push_back(&w.receives[w.receives_posted++]);
      }
    }
    if (!link->progress() && pick(random, 0, 50) == 0) {
      pollfd p{link->descriptor(), static_cast<short>(POLLIN | (link->wants_write() ? POLLOUT : 0)), 0};
      ::poll(&p, 1, 1);
    }
    const LinkEvent event = link->event();
    // The peer may be through while this rank has yet to post what fetches bytes that have arrived.
    CHECK(event.kind == Kind::kNone || event.kind == Kind::kClosed, "%s", event.text.c_str());
    for (auto i = works.begin(); i != works.end();) {
      Work& w = *i;
      if (!w.done()) {
        ++i;
        continue;
      }
      for (const SendRequest& s : w.sends) {
        CHECK(s.done && s.remaining == 0);
      }
      for (const auto& check : w.checks) {
        check();
      }
      CHECK(!w.stream.peer_seen || w.stream.peer_signature == w.stream.signature);
      link->close(w.stream);
      i = works.erase(i);
    }
  }
  link->shut_down();
}

inline void random_traffic(const char* name, std::uint64_t seed, int streams, std::int64_t most, bool tcp, bool slow) {
  const auto plans = make_plan(seed, streams, most);
  std::pair<int, int> fds = tcp ? tcp_pair() : unix_pair();
  std::thread forwarder;
  if (slow) {
    const std::pair<int, int> second = tcp ? tcp_pair() : unix_pair();
    forwarder = std::thread(relay, fds.second, second.first, seed);
    fds.second = second.second;
  }
  std::thread other(run_rank, fds.second, 1, seed, std::cref(plans));
  run_rank(fds.first, 0, seed, plans);
  other.join();
  if (slow) {
    forwarder.join();
  }
  std::printf("ok %s, seed %lu\n", name, static_cast<unsigned long>(seed));
}

}  // namespace tcp_link_test
