// The short way of the TCP link: against itself, against streams, and wherever it has to give way to a stream.
#include "tcp_link_traffic.h"

namespace {

using namespace tcp_link_test;  // NOLINT

// One rank's end of a sendrecv, and of the stream that it may become.
struct End {
  Bytes out, in;
  SendRecv sendrecv;
  Stream stream;
  Span in_span, out_span;
  SendRequest send;
  ReceiveRequest receive;
  bool is_stream = false;

  End(std::uint64_t sequence, int rank, std::size_t bytes) : out(bytes), in(bytes) {
    for (std::size_t i = 0; i < bytes; ++i) {
      out[i] = pattern(2 * sequence + static_cast<std::uint64_t>(rank), static_cast<std::int64_t>(i));
    }
    sendrecv = {{1, sequence}, signature_of(sequence), out.data(), static_cast<std::int64_t>(bytes)};
    stream.key = sendrecv.key;
    stream.signature = sendrecv.signature;
    out_span = {out.data(), sendrecv.bytes};
    in_span = {in.data(), sendrecv.bytes};
    send.source = SpanCursor(Buffer{&out_span, 1, sendrecv.bytes});
    send.remaining = sendrecv.bytes;
    receive.destination = SpanCursor(Buffer{&in_span, 1, sendrecv.bytes});
    receive.remaining = sendrecv.bytes;
  }
  End(const End&) = delete;

  void finish(Link& link, int looks) {
    if (const std::byte* received = link.finish_sendrecv(sendrecv, looks); received != nullptr) {
      std::copy(received, received + sendrecv.bytes, in.begin());
      receive.done = true;
      return;
    }
    is_stream = true;
    stream.sends.push_back(&send);
    link.open_begun(stream, sendrecv);
    stream.receives.push_back(&receive);
  }
  void open(Link& link) {
    is_stream = true;
    stream.sends.push_back(&send);
    stream.receives.push_back(&receive);
    link.open(stream);
  }
  // As the executor does it.
  void begin(Link& link, int looks) {
    if (link.begin_sendrecv(sendrecv)) {
      finish(link, looks);
    } else {
      open(link);
    }
  }
  bool is_done() const { return receive.done && stream.sends.empty(); }
  void close(Link& link) {
    if (is_stream) {
      link.close(stream);
    }
  }
};

struct Ends {
  std::unique_ptr<Link> a, b;
  explicit Ends(std::pair<int, int> fds) : a(make_tcp_link(fds.first, 1)), b(make_tcp_link(fds.second, 0)) {}

  void step() {
    for (int i = 0; i < 300; ++i) {
      a->progress();
      b->progress();
    }
  }
  // Whatever went before, the link serves a sendrecv and a stream.
  void expect_in_order(std::uint64_t sequence) {
    const auto unknown = [](const Link& link) { return static_cast<const TcpLink&>(link).unknown_streams(); };
    CHECK(unknown(*a) == 0 && unknown(*b) == 0 && a->event().kind == Kind::kNone && b->event().kind == Kind::kNone);
    for (std::uint64_t i = 0; i < 2; ++i) {
      End of_a(sequence + i, 0, 1000), of_b(sequence + i, 1, 1000);
      CHECK(a->begin_sendrecv(of_a.sendrecv));
      if (i == 0) {
        CHECK(b->begin_sendrecv(of_b.sendrecv));
        of_b.finish(*b, 1000);
      } else {
        of_b.open(*b);
        b->progress();
      }
      of_a.finish(*a, 1000);
      CHECK(of_a.is_done() && of_b.is_done() && of_a.in == of_b.out && of_b.in == of_a.out);
      CHECK(!of_a.is_stream && of_b.is_stream == (i == 1));
      of_b.close(*b);
    }
  }
};

// How far apart the ends are, and whether the sockets take a whole message, makes no difference.
void against_streams(const std::function<std::pair<int, int>()>& make) {
  for (const std::size_t bytes : {1, 8, 2048, 2049, 16384}) {
    for (const bool both : {false, true}) {
      Ends e(make());
      const std::int64_t before = e.a->bytes_sent;
      End a(1, 0, bytes), b(1, 1, bytes);
      if (both) {
        a.begin(*e.a, 0);
        b.begin(*e.b, 0);
      } else {
        b.open(*e.b);
        a.begin(*e.a, 0);
      }
      e.step();
      CHECK(a.is_done() && b.is_done() && a.in == b.out && b.in == a.out, "%zu bytes", bytes);
      CHECK(e.a->bytes_sent - before == static_cast<std::int64_t>(bytes));
      CHECK(!a.is_stream || a.stream.bytes_sent == static_cast<std::int64_t>(bytes));
      a.close(*e.a);
      b.close(*e.b);
      e.expect_in_order(2);
    }
  }
}

// A frame of the stream of `end`, as its peer sends it. header: what else it says.
Bytes frame_to(const End& end, const Bytes& message, wire::FrameHeader header = {}) {
  header.first = true;
  header.communicator = end.sendrecv.key.communicator;
  header.sequence = end.sendrecv.key.sequence;
  header.length = static_cast<std::uint32_t>(message.size());
  header.signature = end.sendrecv.signature;
  Bytes frame(wire::kHeaderBytes);
  wire::encode(header, frame.data());
  frame.insert(frame.end(), message.begin(), message.end());
  return frame;
}

// On the wire it is a stream: the peer's counts as taken, and the next frame says so.
void one_frame() {
  const auto [fd, raw] = unix_pair();
  auto link = make_tcp_link(fd, 1);
  for (std::uint32_t i = 0; i < 2; ++i) {
    End a(i + 1, 0, 8);
    const End peer(i + 1, 1, 8);
    CHECK(link->begin_sendrecv(a.sendrecv));
    std::byte bytes[1000];
    CHECK(::recv(raw, bytes, sizeof(bytes), MSG_DONTWAIT) == wire::kHeaderBytes + 8);
    wire::FrameHeader header;
    std::string error;
    CHECK(wire::decode(bytes, &header, &error) && header.first && header.streams_opened == i);
    CHECK(header.signature == a.sendrecv.signature && header.sequence == i + 1 && header.length == 8);
    CHECK(std::equal(a.out.begin(), a.out.end(), bytes + wire::kHeaderBytes));
    const Bytes frame = frame_to(a, peer.out);
    CHECK(::send(raw, frame.data(), frame.size(), 0) == static_cast<ssize_t>(frame.size()));
    a.finish(*link, 0);
    CHECK(a.is_done() && !a.is_stream && a.in == peer.out);
  }
  ::close(raw);
}

// A message that the socket does not take at once is not done before it has left, and is counted as it leaves.
void in_part() {
  const auto [fd, raw] = narrow_pair();
  auto link = make_tcp_link(fd, 1);
  constexpr std::size_t kBytes = 16384;
  End a(1, 0, kBytes);
  const End peer(1, 1, kBytes);
  CHECK(link->begin_sendrecv(a.sendrecv));
  a.finish(*link, 0);
  const std::int64_t sent = link->bytes_sent;
  CHECK(a.is_stream && sent < static_cast<std::int64_t>(kBytes) && a.stream.bytes_sent == sent && link->wants_write());
  const Bytes frame = frame_to(a, peer.out);
  Bytes got;
  for (std::size_t at = 0; at < frame.size();) {
    const ssize_t n = ::send(raw, frame.data() + at, frame.size() - at, MSG_DONTWAIT);
    at += n > 0 ? static_cast<std::size_t>(n) : 0;
    link->progress();
  }
  link->progress();
  CHECK(a.receive.done && a.in == peer.out && !a.is_done());
  while (got.size() < wire::kHeaderBytes + kBytes) {
    std::byte bytes[4096];
    const ssize_t n = ::recv(raw, bytes, sizeof(bytes), MSG_DONTWAIT);
    got.insert(got.end(), bytes, bytes + std::max<ssize_t>(n, 0));
    link->progress();
  }
  CHECK(a.is_done() && Bytes(got.begin() + wire::kHeaderBytes, got.end()) == a.out);
  CHECK(link->bytes_sent == static_cast<std::int64_t>(kBytes) && a.stream.bytes_sent == link->bytes_sent);
  a.close(*link);
  ::close(raw);
}

// A link that has anything else to do does not sendrecv.
void only_when_idle() {
  Ends e(unix_pair());
  End one(1, 0, 8), two(2, 0, 8), early(1, 1, 8), three(3, 0, 8);
  one.open(*e.a);
  CHECK(!e.a->begin_sendrecv(two.sendrecv));
  one.close(*e.a);
  early.open(*e.b);
  e.step();
  CHECK(static_cast<TcpLink&>(*e.b).unknown_streams() == 0);
  early.close(*e.b);
  End ahead(2, 1, 8);
  ahead.open(*e.b);
  e.step();
  CHECK(static_cast<TcpLink&>(*e.a).unknown_streams() == 1 && !e.a->begin_sendrecv(three.sendrecv));
  two.open(*e.a);
  e.step();
  CHECK(two.is_done() && ahead.is_done() && two.in == ahead.out);
  two.close(*e.a);
  ahead.close(*e.b);
  CHECK(e.a->begin_sendrecv(three.sendrecv));
  three.finish(*e.a, 0);
  e.a->shut_down();
  e.b->shut_down();
  CHECK(!e.a->begin_sendrecv(three.sendrecv) && !e.b->begin_sendrecv(three.sendrecv));
  three.close(*e.a);
}

// What comes behind the message in one piece is not lost: the next stream, or a report.
void with_more_behind() {
  Ends e(unix_pair());
  End a(1, 0, 100), b(1, 1, 100), next_a(2, 0, 3000), next_b(2, 1, 3000);
  b.begin(*e.b, 0);
  next_b.open(*e.b);
  e.b->progress();
  CHECK(e.a->begin_sendrecv(a.sendrecv));
  a.finish(*e.a, 10);
  CHECK(a.is_stream);
  e.step();
  CHECK(a.is_done() && b.is_done() && a.in == b.out && b.in == a.out);
  a.close(*e.a);
  next_a.begin(*e.a, 0);
  e.step();
  CHECK(next_a.is_done() && next_b.is_done() && next_a.in == next_b.out);
  for (End* end : {&b, &next_b}) {
    end->close(*e.b);
  }
  next_a.close(*e.a);
  e.expect_in_order(3);

  End received(5, 0, 100), teller(5, 1, 100);
  teller.begin(*e.b, 0);
  e.b->send_control("rank 1 gave up");
  CHECK(e.a->begin_sendrecv(received.sendrecv));
  received.finish(*e.a, 10);
  e.a->progress();
  const LinkEvent event = e.a->event();
  CHECK(received.is_done() && event.kind == Kind::kControlMessage && event.text == "rank 1 gave up");
  received.close(*e.a);
  teller.close(*e.b);
}

// Other lengths, tokens and signatures are for the stream to say.
void with_another_call() {
  for (int c = 0; c < 3; ++c) {
    Ends e(unix_pair());
    End a(1, 0, 100), b(1, 1, c == 0 ? 60 : 100);
    b.stream.signature.dtype = 9;
    b.sendrecv.signature.dtype = 9;
    if (c == 2) {
      b.send.token = true;
      b.send.remaining = 0;
      b.open(*e.b);
      e.b->progress();
    } else {
      CHECK(e.b->begin_sendrecv(b.sendrecv));
      b.finish(*e.b, 0);
    }
    CHECK(e.a->begin_sendrecv(a.sendrecv));
    a.finish(*e.a, 10);
    e.step();
    CHECK(a.is_stream && a.stream.peer_seen && a.stream.peer_signature.dtype == 9 && !a.receive.done);
    CHECK(b.stream.peer_seen && b.stream.peer_signature.dtype == 0 && !b.receive.done);
    CHECK(a.in == Bytes(100));
    a.close(*e.a);
    b.close(*e.b);
    e.expect_in_order(2);
  }
}

// A frame that no sender writes, or that counts what was never begun, fails the link as ever.
void malformed() {
  for (int c = 0; c < 3; ++c) {
    const auto [fd, raw] = unix_pair();
    auto link = make_tcp_link(fd, 1);
    End a(1, 0, 8);
    wire::FrameHeader header;
    header.credit = c == 0 ? 9 : 0;
    header.streams_opened = c == 1 ? 2 : 0;
    Bytes frame = frame_to(a, Bytes(8), header);
    frame[0] = c == 2 ? std::byte{0} : frame[0];
    CHECK(::send(raw, frame.data(), frame.size(), 0) == static_cast<ssize_t>(frame.size()));
    CHECK(link->begin_sendrecv(a.sendrecv));
    a.finish(*link, 10);
    const LinkEvent event = link->event();
    const char* const text[] = {"credit outside", "opened more streams", "malformed frame"};
    CHECK(!a.receive.done && event.kind == Kind::kFailed && event.text.find(text[c]) != std::string::npos, "%s",
          event.text.c_str());
    a.close(*link);
    ::close(raw);
  }
}

// The peer ends before, within or behind its message, or says why.
void endings() {
  for (const std::size_t part : {std::size_t{0}, wire::kHeaderBytes + 50, wire::kHeaderBytes + 100}) {
    const auto [fd, raw] = unix_pair();
    auto link = make_tcp_link(fd, 1);
    End a(1, 0, 100), b(1, 1, 100);
    Bytes frame(wire::kHeaderBytes + 100);
    CHECK(link->begin_sendrecv(b.sendrecv));
    CHECK(::recv(raw, frame.data(), frame.size(), 0) == static_cast<ssize_t>(frame.size()));
    CHECK(::send(raw, frame.data(), part, 0) == static_cast<ssize_t>(part));
    ::shutdown(raw, SHUT_WR);
    b.finish(*link, 10);
    CHECK(b.receive.done == (part == frame.size()));
    LinkEvent event;
    for (int i = 0; i < 10 && event.kind == Kind::kNone; ++i) {
      link->progress();
      event = link->event();
    }
    CHECK(event.kind == Kind::kFailed && event.ended && event.text.find("end of file") != std::string::npos);
    CHECK(!link->begin_sendrecv(a.sendrecv));
    b.close(*link);
    ::close(raw);
  }
  Ends e(unix_pair());
  End a(1, 0, 8);
  e.b->send_control("out of memory");
  e.b.reset();
  if (e.a->begin_sendrecv(a.sendrecv)) {
    a.finish(*e.a, 10);
  } else {
    a.open(*e.a);
  }
  e.a->progress();
  CHECK(e.a->event().text == "out of memory");
  e.a->progress();
  CHECK(e.a->event().kind == Kind::kFailed);
  a.close(*e.a);
}

// A connection that was reset, which the sendrecv is the first to notice: when it looks, or when it sends. The message
// that came before may be all that is needed.
void resets(bool sends_before) {
  for (const std::size_t bytes : {8, 4096}) {
    for (const bool has_message : {false, true}) {
      const auto [fd, raw] = tcp_pair();
      auto link = make_tcp_link(fd, 1);
      End a(1, 0, bytes);
      const End peer(1, 1, bytes);
      // What the other side does not read makes its kernel answer its end with a reset.
      if (sends_before) {
        CHECK(link->begin_sendrecv(a.sendrecv));
      } else {
        link->send_control("not read");
      }
      if (has_message) {
        const Bytes frame = frame_to(a, peer.out);
        CHECK(::send(raw, frame.data(), frame.size(), 0) == static_cast<ssize_t>(frame.size()));
      }
      pollfd unread{raw, POLLIN, 0};
      CHECK(::poll(&unread, 1, 10000) == 1);
      ::close(raw);
      if (sends_before) {
        a.finish(*link, 10);
      } else {
        a.begin(*link, 10);
      }
      LinkEvent event;
      for (int i = 0; i < 10 && event.kind == Kind::kNone; ++i) {
        link->progress();
        event = link->event();
      }
      CHECK(event.kind == Kind::kFailed && event.ended && event.text.find("errno 104") != std::string::npos, "%s",
            event.text.c_str());
      CHECK(a.receive.done == has_message && a.is_done() == (has_message && (sends_before || bytes == 8)), "%zu bytes",
            bytes);
      CHECK(a.in == (has_message ? peer.out : Bytes(bytes)));
      a.close(*link);
    }
  }
}

// Both ends take whichever way they find, at their own pace.
void in_turn(const char* name, std::uint64_t seed, int calls, bool slow) {
  std::pair<int, int> fds = tcp_pair();
  std::thread forwarder;
  if (slow) {
    const std::pair<int, int> second = tcp_pair();
    forwarder = std::thread(relay, fds.second, second.first, seed);
    fds.second = second.second;
  }
  int swapped[2] = {0, 0};
  const auto run = [&](int rank, int fd) {
    auto link = make_tcp_link(fd, 1 - rank);
    Random sizes(seed);
    Random random(2 * seed + static_cast<std::uint64_t>(rank));
    for (int i = 1; i <= calls; ++i) {
      const auto bytes = static_cast<std::size_t>(pick(sizes, 1, pick(sizes, 0, 9) == 0 ? 16384 : 300));
      // On both ranks alike: each looks until the other's message is there, however busy the machine is.
      const bool patient = pick(sizes, 0, 15) == 0;
      End end(static_cast<std::uint64_t>(i), rank, bytes);
      const End peer(static_cast<std::uint64_t>(i), 1 - rank, bytes);
      if (patient) {
        end.begin(*link, 1 << 30);
      } else if (pick(random, 0, 7) == 0) {
        end.open(*link);
      } else {
        end.begin(*link, static_cast<int>(pick(random, 0, 200)));
      }
      while (!end.is_done()) {
        link->progress();
      }
      CHECK(end.in == peer.out, "call %d", i);
      swapped[rank] += end.is_stream ? 0 : 1;
      end.close(*link);
      // After the last call the peer may have closed its end before this one has looked.
      const Kind kind = link->event().kind;
      CHECK(kind == Kind::kNone || (kind == Kind::kClosed && i == calls), "call %d", i);
    }
    link->shut_down();
  };
  std::thread other(run, 1, fds.second);
  run(0, fds.first);
  other.join();
  if (slow) {
    forwarder.join();
  }
  CHECK(slow || (swapped[0] > 0 && swapped[1] > 0), "%d and %d", swapped[0], swapped[1]);
  std::printf("ok %s: %d and %d of %d swapped\n", name, swapped[0], swapped[1], calls);
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  against_streams(unix_pair);
  against_streams(tcp_pair);
  against_streams(narrow_pair);
  one_frame();
  in_part();
  only_when_idle();
  with_more_behind();
  with_another_call();
  malformed();
  endings();
  resets(false);
  resets(true);
  for (std::uint64_t s = seed; s < seed + 4; ++s) {
    in_turn("calls in turn", s, 5000, false);
    in_turn("calls in turn, a few bytes at a time", s, 50, true);
  }
  return 0;
}
