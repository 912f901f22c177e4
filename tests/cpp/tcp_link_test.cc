// Stress test of the TCP link: random traffic against a model, over socket pairs, real TCP and a relay that passes on a
// few bytes at a time; messages before the stream is open; flow control; abort, good-bye, end of file; malformed
// frames.
//
//   tcp_link_test [seed]
#include "tcp_link_traffic.h"

namespace {

using namespace tcp_link_test;  // NOLINT

// A stream with one message each way at most, for the tests that step both ends on one thread.
struct Single {
  Stream stream;
  Bytes out, in;
  Span out_span, in_span;
  SendRequest send;
  ReceiveRequest receive;
  Single(std::uint64_t sequence, std::size_t out_bytes, std::size_t in_bytes)
      : out(out_bytes, std::byte{7}), in(in_bytes) {
    stream.key = {1, sequence};
    stream.signature = signature_of(sequence);
    out_span = {out.data(), static_cast<std::int64_t>(out_bytes)};
    in_span = {in.data(), static_cast<std::int64_t>(in_bytes)};
    send.source = SpanCursor(Buffer{&out_span, 1, out_span.bytes});
    send.remaining = out_span.bytes;
    receive.destination = SpanCursor(Buffer{&in_span, 1, in_span.bytes});
    receive.remaining = in_span.bytes;
    if (out_bytes > 0) {
      stream.sends.push_back(&send);
    }
    if (in_bytes > 0) {
      stream.receives.push_back(&receive);
    }
  }
  Single(const Single&) = delete;
};

void step(Link& a, Link& b, int rounds = 300) {
  for (int i = 0; i < rounds; ++i) {
    a.progress();
    b.progress();
  }
}

void expect_event(Link& link, Kind kind, const char* text) {
  LinkEvent event;
  for (int i = 0; i < 20000 && event.kind == Kind::kNone; ++i) {
    link.progress();
    event = link.event();
    if (event.kind == Kind::kNone && i > 1000) {
      ::usleep(100);
    }
  }
  CHECK(event.kind == kind && event.text.find(text) != std::string::npos, "kind %d: %s", static_cast<int>(event.kind),
        event.text.c_str());
}

struct Ends {
  std::unique_ptr<Link> a, b;
  explicit Ends(std::pair<int, int> fds) : a(make_tcp_link(fds.first, 1)), b(make_tcp_link(fds.second, 0)) {}
};

void flow_control() {
  constexpr std::int64_t kLong = wire::kWindowBytes + (512 << 10);
  Ends e(unix_pair());
  const auto& b_link = static_cast<TcpLink&>(*e.b);
  Single a(1, kLong, 0), b(1, 0, kLong);
  e.a->open(a.stream);
  step(*e.a, *e.b);
  CHECK(a.send.remaining == kLong - wire::kEagerBytes, "%ld", static_cast<long>(a.send.remaining));
  CHECK(b_link.unknown_streams() == 1);
  b.stream.receives.clear();  // open, but nothing posted
  e.b->open(b.stream);
  CHECK(b.stream.peer_seen && b.stream.peer_signature == a.stream.signature && b_link.unknown_streams() == 0);
  step(*e.a, *e.b);
  CHECK(a.send.remaining == kLong - wire::kWindowBytes);
  b.stream.receives.push_back(&b.receive);
  step(*e.a, *e.b);
  CHECK(a.send.done && b.receive.done && b.in == a.out && a.stream.peer_seen);
  CHECK(e.a->bytes_sent == kLong);

  // A tiny message overtakes a long one that waits; a long one that goes on does not block it either.
  Single long_a(2, kLong, 0), tiny_a(3, 8, 0), tiny_b(3, 0, 8);
  e.a->open(long_a.stream);
  e.a->open(tiny_a.stream);
  e.b->open(tiny_b.stream);
  step(*e.a, *e.b);
  CHECK(tiny_b.receive.done && !long_a.send.done);
  // Closing in the middle of a frame leaves the link in order.
  e.a->close(long_a.stream);
  Single last_a(4, 100, 100), last_b(4, 100, 100);
  e.a->open(last_a.stream);
  e.b->open(last_b.stream);
  step(*e.a, *e.b);
  CHECK(last_a.receive.done && last_b.receive.done);

  // A rank that only waits shows that it is alive, although nothing is on the way to it.
  Single wait_a(5, 0, 8), wait_b(5, 0, 8);
  e.a->open(wait_a.stream);
  e.b->open(wait_b.stream);
  step(*e.a, *e.b);
  CHECK(wait_a.stream.peer_seen && wait_b.stream.peer_seen);

  // Nothing is delivered into a stream of another signature.
  Single bad_a(6, 64, 0), bad_b(6, 0, 64);
  bad_b.stream.signature.dtype = 3;
  e.a->open(bad_a.stream);
  e.b->open(bad_b.stream);
  step(*e.a, *e.b);
  CHECK(bad_b.stream.peer_seen && !bad_b.receive.done && bad_b.in == Bytes(64));
  for (Single* s : {&a, &tiny_a, &last_a, &wait_a, &bad_a}) {
    e.a->close(s->stream);
  }
  for (Single* s : {&b, &tiny_b, &last_b, &wait_b, &bad_b}) {
    e.b->close(s->stream);
  }
  CHECK(e.a->event().kind == Kind::kNone && e.b->event().kind == Kind::kNone);
  std::printf("ok flow control\n");
}

// A rank may run far ahead of its peer; the number of streams that the peer has not opened stays bounded.
void running_ahead() {
  Ends e(tcp_pair());
  const auto& b_link = static_cast<TcpLink&>(*e.b);
  constexpr int kStreams = 5000;
  std::deque<Single> ahead;
  for (std::uint64_t i = 1; i <= kStreams; ++i) {
    e.a->open(ahead.emplace_back(i, 8, 0).stream);
  }
  step(*e.a, *e.b);
  CHECK(b_link.unknown_streams() == wire::kMaxUnknownStreams, "%zu", b_link.unknown_streams());
  for (std::uint64_t i = 1; i <= kStreams; ++i) {
    Single b(i, 0, 8);
    e.b->open(b.stream);
    for (int k = 0; k < 1000 && !b.receive.done; ++k) {
      step(*e.a, *e.b, 1);
    }
    CHECK(b.receive.done, "stream %lu", static_cast<unsigned long>(i));
    e.b->close(b.stream);
  }
  // Late first frames of streams that the other side has closed without ever hearing from the peer are dropped.
  for (Single& s : ahead) {
    e.a->close(s.stream);
  }
  CHECK(static_cast<TcpLink&>(*e.a).unknown_streams() == 0);
  Single late(7000, 0, wire::kEagerBytes);
  Single early(7000, 0, 0);
  e.a->open(early.stream);
  e.a->close(early.stream);
  e.b->open(late.stream);
  step(*e.a, *e.b);
  CHECK(static_cast<TcpLink&>(*e.a).unknown_streams() == 0);
  e.b->close(late.stream);
  std::printf("ok running ahead\n");
}

// What a rank keeps of long messages that it has not asked for stays bounded, and all arrive once it does.
void running_ahead_with_much() {
  Ends e(tcp_pair());
  constexpr int kStreams = 100;
  constexpr std::int64_t kBytes = wire::kEagerBytes + (88 << 10);
  std::deque<Single> ahead;
  for (std::uint64_t i = 1; i <= kStreams; ++i) {
    e.a->open(ahead.emplace_back(i, kBytes, 0).stream);
  }
  const auto sent = [&] {
    std::int64_t total = 0;
    for (const Single& s : ahead) {
      total += kBytes - s.send.remaining;
    }
    return total;
  };
  for (std::int64_t before = -1; before != sent();) {
    before = sent();
    step(*e.a, *e.b);
  }
  const std::int64_t most = wire::kAheadBytes + wire::kEagerBytes + kStreams * wire::kEagerMessageBytes;
  CHECK(sent() >= wire::kAheadBytes && sent() <= most, "%ld", static_cast<long>(sent()));
  for (std::uint64_t i = 1; i <= kStreams; ++i) {
    Single b(i, 0, kBytes);
    e.b->open(b.stream);
    for (int k = 0; k < 10000 && !(b.receive.done && ahead[i - 1].send.done); ++k) {
      step(*e.a, *e.b, 1);
    }
    CHECK(b.receive.done && b.in == ahead[i - 1].out, "stream %lu", static_cast<unsigned long>(i));
    e.a->close(ahead[i - 1].stream);
    e.b->close(b.stream);
  }
}

// An exchange of 8 bytes puts one frame on the wire in each direction and nothing else.
void one_frame() {
  const auto [fd, raw] = unix_pair();
  auto link = make_tcp_link(fd, 1);
  Single a(1, 8, 8);
  link->open(a.stream);
  link->progress();
  std::byte bytes[1000];
  CHECK(::recv(raw, bytes, sizeof(bytes), MSG_DONTWAIT) == wire::kHeaderBytes + 8);
  CHECK(::send(raw, bytes, wire::kHeaderBytes + 8, 0) == wire::kHeaderBytes + 8);
  link->progress();
  CHECK(a.receive.done && a.send.done && a.in == a.out);
  for (int i = 0; i < 100; ++i) {
    CHECK(!link->progress());
  }
  CHECK(::recv(raw, bytes, sizeof(bytes), MSG_DONTWAIT) < 0);
  link->close(a.stream);
  ::close(raw);
  std::printf("ok one frame\n");
}

// What an arrival makes due goes out at once, for the rank may do other things next: credit, although nothing is
// posted.
void answered_at_once() {
  const auto [fd, raw] = unix_pair();
  auto link = make_tcp_link(fd, 1);
  Single open(1, 0, 0);
  link->open(open.stream);
  wire::FrameHeader header;
  header.first = true;
  header.communicator = open.stream.key.communicator;
  header.sequence = open.stream.key.sequence;
  header.signature = open.stream.signature;
  header.length = wire::kEagerBytes / 2 + 1;
  std::byte bytes[1000];
  wire::encode(header, bytes);
  CHECK(::send(raw, bytes, wire::kHeaderBytes, 0) == wire::kHeaderBytes);
  link->progress();
  CHECK(::recv(raw, bytes, sizeof(bytes), MSG_DONTWAIT) == wire::kHeaderBytes);
  std::string error;
  CHECK(wire::decode(bytes, &header, &error) && header.type == wire::FrameType::kCredit, "%s", error.c_str());
  link->close(open.stream);
  ::close(raw);
  std::printf("ok answered at once\n");
}

void endings(bool tcp) {
  const auto make = [tcp] { return tcp ? tcp_pair() : unix_pair(); };
  {  // abort overtakes what is queued; the link stays up
    Ends e(make());
    Single a(1, 4 << 20, 0);
    e.a->open(a.stream);
    e.a->progress();
    e.a->send_control("rank 0 saw " + std::string(100000, 'x'));
    step(*e.a, *e.b, 50);
    LinkEvent event = e.b->event();
    CHECK(event.kind == Kind::kControlMessage && event.text.size() == wire::kMaxReportBytes &&
          event.text.starts_with("rank 0 saw xxx"));
    e.a->send_control("");
    expect_event(*e.b, Kind::kControlMessage, "");
    e.a->close(a.stream);
  }
  {  // good-bye: everything queued arrives first, then kClosed
    Ends e(make());
    Single a(1, 3 << 20, 0), b(1, 0, 3 << 20);
    e.a->open(a.stream);
    e.b->open(b.stream);
    std::thread other([&] {
      e.a->shut_down();
      CHECK(e.a->descriptor() == -1 && !e.a->progress());
    });
    expect_event(*e.b, Kind::kClosed, "rank 0");
    other.join();
    CHECK(b.receive.done && b.in == a.out && e.b->descriptor() == -1);
    CHECK(!e.b->progress() && e.b->event().kind == Kind::kNone);
    e.b->shut_down();
    e.a->close(a.stream);
    e.b->close(b.stream);
  }
  {  // what arrived before the end goes to receives that are posted after it, and messages of no bytes are done
    Ends e(make());
    Single a(1, 1000, 0), b(1, 0, 1000);
    e.a->open(a.stream);
    e.a->progress();
    e.a->close(a.stream);
    e.a->shut_down();
    expect_event(*e.b, Kind::kClosed, "rank 0");
    e.b->open(b.stream);
    b.send.remaining = 0;
    b.stream.sends.push_back(&b.send);
    CHECK(e.b->progress() && b.receive.done && b.send.done && b.in == a.out);
    e.b->close(b.stream);
  }
  {  // end of file midway: what arrived is delivered, then kFailed
    Ends e(make());
    Single a(1, 1000, 0), b(1, 0, 1000), more(2, 0, 10);
    e.a->open(a.stream);
    e.a->progress();
    e.a->close(a.stream);
    e.a.reset();
    e.b->open(b.stream);
    e.b->open(more.stream);
    expect_event(*e.b, Kind::kFailed, "rank 0: connection closed by the peer without a good-bye (errno ");
    CHECK(b.receive.done && !more.receive.done && b.in == a.out);
    e.b->close(b.stream);
  }
  {  // writing into a connection that is gone is no signal and no crash
    Ends e(make());
    Single b(1, 8 << 20, 0);
    e.a.reset();
    e.b->open(b.stream);
    expect_event(*e.b, Kind::kFailed, "without a good-bye");
    e.b->send_control("too late");
    e.b->shut_down();
  }
  std::printf("ok endings over %s\n", tcp ? "TCP" : "a socket pair");
}

void malformed(Random& random, int cases) {
  int failed = 0;
  for (int c = 0; c < cases; ++c) {
    const auto [fd, raw] = unix_pair();
    auto link = make_tcp_link(fd, 1);
    Single open(1, 4, 300);
    link->open(open.stream);
    link->progress();
    Bytes wire;
    for (std::int64_t frames = pick(random, 1, 6); frames > 0; --frames) {
      std::byte bytes[wire::kHeaderBytes];
      wire::FrameHeader h;
      h.type = static_cast<wire::FrameType>(pick(random, 1, 6));
      h.first = pick(random, 0, 1) == 0;
      h.communicator = static_cast<std::uint32_t>(pick(random, 1, 2));
      h.sequence = static_cast<std::uint64_t>(pick(random, 1, 3));
      h.credit = static_cast<std::uint64_t>(pick(random, 0, 6));
      h.streams_opened = static_cast<std::uint32_t>(pick(random, 0, 2));
      h.signature = signature_of(h.sequence);
      const bool payload = h.type == wire::FrameType::kData || h.type == wire::FrameType::kAbort;
      h.length = payload ? static_cast<std::uint32_t>(pick(random, 1, 600)) : 0;
      wire::encode(h, bytes);
      if (pick(random, 0, 2) == 0) {
        for (std::int64_t n = pick(random, 1, 4); n > 0; --n) {
          bytes[pick(random, 0, wire::kHeaderBytes - 1)] = static_cast<std::byte>(pick(random, 0, 255));
        }
      }
      wire.insert(wire.end(), bytes, bytes + sizeof(bytes));
      for (std::uint32_t i = 0; i < h.length; ++i) {
        wire.push_back(static_cast<std::byte>(i));
      }
    }
    if (pick(random, 0, 9) == 0) {
      for (std::byte& b : wire) {
        b = static_cast<std::byte>(pick(random, 0, 255));
      }
    }
    CHECK(::send(raw, wire.data(), wire.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(wire.size()));
    ::close(raw);
    LinkEvent event;
    for (int i = 0; i < 200 && (event.kind == Kind::kNone || event.kind == Kind::kControlMessage); ++i) {
      link->progress();
      event = link->event();
    }
    CHECK(event.kind == Kind::kFailed || event.kind == Kind::kClosed);
    CHECK(!event.text.empty() && event.text.size() < 400, "%s", event.text.c_str());
    failed += event.kind == Kind::kFailed ? 1 : 0;
    link->close(open.stream);
  }
  CHECK(failed > cases / 2);
  std::printf("ok %d malformed inputs, %d failed links\n", cases, failed);
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  Random random(seed);
  flow_control();
  running_ahead();
  running_ahead_with_much();
  one_frame();
  answered_at_once();
  endings(false);
  endings(true);
  for (std::uint64_t s = seed; s < seed + 4; ++s) {
    random_traffic("random traffic over a socket pair", s, 300, 700000, false, false);
    random_traffic("random traffic over TCP", s, 300, 700000, true, false);
    random_traffic("long messages over TCP", s, 5, 2 * wire::kWindowBytes, true, false);
    random_traffic("short messages over TCP", s, 1500, 5000, true, false);
    random_traffic("random traffic a few bytes at a time", s, 40, 9000, s % 2 == 0, true);
  }
  malformed(random, 100000);
  return 0;
}
