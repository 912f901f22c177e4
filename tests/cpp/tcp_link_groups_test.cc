// A TCP link that several communicators share: one of them may fail in the middle of a frame, in either direction, or
// be forgotten with streams under way, or send messages for which no receive is posted, and the others do not notice.
#include "tcp_link_traffic.h"

namespace {

using namespace tcp_link_test;  // NOLINT

// One message each way at most, of one communicator.
struct Message {
  Stream stream;
  Bytes out, in;
  Span out_span, in_span;
  SendRequest send;
  ReceiveRequest receive;
  Message(std::uint32_t communicator, std::uint64_t sequence, std::size_t out_bytes, std::size_t in_bytes)
      : out(out_bytes), in(in_bytes) {
    for (std::size_t i = 0; i < out_bytes; ++i) {
      out[i] = pattern(communicator, static_cast<std::int64_t>(i));
    }
    stream.key = {communicator, sequence};
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
  Message(const Message&) = delete;
};

struct Ends {
  std::unique_ptr<Link> a, b;
  const TcpLink &a_link, &b_link;
  explicit Ends(std::pair<int, int> fds)
      : a(make_tcp_link(fds.first, 1)),
        b(make_tcp_link(fds.second, 0)),
        a_link(static_cast<const TcpLink&>(*a)),
        b_link(static_cast<const TcpLink&>(*b)) {}
  void step(int rounds = 3000) {
    for (int i = 0; i < rounds; ++i) {
      a->progress();
      b->progress();
    }
  }
};

void expect_quiet(Ends& e) {
  CHECK(e.a->event().kind == Kind::kNone && e.b->event().kind == Kind::kNone);
  CHECK(e.a->descriptor() >= 0 && e.b->descriptor() >= 0);
}

// Both ways through communicator 2.
void expect_in_order(Ends& e, std::uint64_t sequence) {
  Message a(2, sequence, 700000, 300000), b(2, sequence, 300000, 700000);
  e.a->open(a.stream);
  e.b->open(b.stream);
  e.step();
  CHECK(a.receive.done && b.receive.done && a.in == b.out && b.in == a.out);
  e.a->close(a.stream);
  e.b->close(b.stream);
  expect_quiet(e);
}

// The work of communicator 1 ends on one side while a frame of it is half written, or half read.
void midway(bool sender, bool forget, bool before_it_is_read) {
  Ends e(narrow_pair());
  auto a = std::make_unique<Message>(1, 5, 60000, 0);
  Message b(1, 5, 0, 60000), other_a(2, 1, 5000, 0), other_b(2, 1, 0, 5000);
  e.b->open(b.stream);
  e.b->open(other_b.stream);
  e.a->open(a->stream);
  e.a->progress();
  CHECK(e.a->wants_write() && a->send.remaining > 0 && a->send.remaining < 60000, "%ld",
        static_cast<long>(a->send.remaining));
  e.a->open(other_a.stream);
  if (!before_it_is_read) {
    e.b->progress();
    CHECK(b.receive.remaining > 0 && b.receive.remaining < 60000, "%ld", static_cast<long>(b.receive.remaining));
  }
  const Bytes out = a->out;
  if (sender) {
    e.a->close(a->stream);
    if (forget) {
      e.a->forget(1);
    }
    a.reset();  // nothing may refer to it
  } else {
    e.b->close(b.stream);
    if (forget) {
      e.b->forget(1);
    }
  }
  const Bytes before = b.in;
  e.step();
  CHECK(other_b.receive.done && other_b.in == other_a.out);
  if (sender) {
    CHECK(b.receive.done && b.in == out);  // what was declared is sent
    e.b->close(b.stream);
  } else {
    CHECK(b.in == before);  // nothing is written into the memory of a closed stream
    e.a->close(a->stream);
  }
  e.a->close(other_a.stream);
  e.b->close(other_b.stream);
  expect_in_order(e, 2);
  CHECK(e.a_link.unknown_streams() == 0 && e.b_link.unknown_streams() == 0);
}

// Messages that the peer does not ask for hold up neither those that it asks for, nor collectives, in no direction.
void held_back() {
  Ends e(unix_pair());
  constexpr std::uint32_t kUp = 1 | kMessageBit | kUpwardBit;
  constexpr std::uint32_t kDown = 1 | kMessageBit;
  constexpr std::uint64_t kTag = std::uint64_t{1} << kTagShift;
  std::deque<Message> ahead;
  for (std::uint64_t s = 0; s < 3000; ++s) {
    e.a->open(ahead.emplace_back(kUp, s, 100, 0).stream);
  }
  e.step();
  CHECK(e.b_link.unknown_streams() == wire::kStreamsAhead, "%zu", e.b_link.unknown_streams());
  Message wanted_a(kUp, kTag, 100, 0), wanted_b(kUp, kTag, 0, 100);
  Message large_a(kDown, kTag, 0, 1 << 20), large_b(kDown, kTag, 1 << 20, 0);
  Message part_a(1, 0, 300000, 300000), part_b(1, 0, 300000, 300000);
  for (Message* m : {&wanted_a, &large_a, &part_a}) {
    e.a->open(m->stream);
  }
  for (Message* m : {&wanted_b, &large_b, &part_b}) {
    e.b->open(m->stream);
  }
  e.step();
  CHECK(wanted_b.receive.done && wanted_b.in == wanted_a.out);
  CHECK(large_a.receive.done && large_a.in == large_b.out);
  CHECK(part_a.receive.done && part_b.receive.done && part_a.in == part_b.out);
  CHECK(e.b_link.unknown_streams() == wire::kStreamsAhead, "%zu", e.b_link.unknown_streams());
  for (std::uint64_t s = 0; s < ahead.size(); ++s) {
    Message b(kUp, s, 0, 100);
    e.b->open(b.stream);
    e.step(20);
    CHECK(b.receive.done, "message %lu", static_cast<unsigned long>(s));
    e.b->close(b.stream);
  }
  for (Message& m : ahead) {
    e.a->close(m.stream);
  }
  for (Message* m : {&wanted_a, &large_a, &part_a}) {
    e.a->close(m->stream);
  }
  for (Message* m : {&wanted_b, &large_b, &part_b}) {
    e.b->close(m->stream);
  }
  CHECK(e.a_link.unknown_streams() == 0 && e.b_link.unknown_streams() == 0);
  expect_in_order(e, 2);
}

// What came for a communicator that this rank has left is dropped, with what still comes; the peer may begin as many
// streams of others as before.
void forgetting() {
  Ends e(unix_pair());
  constexpr int kStreams = wire::kMaxUnknownStreams;
  std::deque<Message> ahead;
  for (std::uint64_t s = 0; s < kStreams; ++s) {
    e.a->open(ahead.emplace_back(1, s, 100, 0).stream);
  }
  e.step();
  CHECK(e.b_link.unknown_streams() == kStreams, "%zu", e.b_link.unknown_streams());
  Message blocked_a(2, 0, 8, 0), blocked_b(2, 0, 0, 8);
  e.a->open(blocked_a.stream);
  e.step(300);
  CHECK(!blocked_a.send.done);  // too many streams ahead
  e.b->forget(1);
  e.b->forget(1);
  CHECK(e.b_link.unknown_streams() == 0);
  e.step();
  CHECK(blocked_a.send.done && e.b_link.unknown_streams() == 1);
  e.b->open(blocked_b.stream);
  e.step();
  CHECK(blocked_b.receive.done && blocked_b.in == blocked_a.out);
  for (std::uint64_t s = kStreams; s < 3 * kStreams; ++s) {  // late ones
    e.a->open(ahead.emplace_back(1, s, 100, 0).stream);
    if (s % 256 == 0) {
      e.step(20);
    }
  }
  e.step();
  CHECK(e.b_link.unknown_streams() == 0);
  CHECK(ahead.back().send.done);
  // Another communicator with a lower and one with a higher number are not concerned.
  Message zero_a(0, 7, 30000, 0), zero_b(0, 7, 0, 30000);
  e.a->open(zero_a.stream);
  e.step(10);
  CHECK(e.b_link.unknown_streams() == 1);
  e.b->open(zero_b.stream);
  e.step();
  CHECK(zero_b.receive.done && zero_b.in == zero_a.out);
  for (Message& m : ahead) {
    e.a->close(m.stream);
  }
  for (Message* m : {&blocked_a, &zero_a}) {
    e.a->close(m->stream);
  }
  for (Message* m : {&blocked_b, &zero_b}) {
    e.b->close(m->stream);
  }
  expect_in_order(e, 9);
}

// Reports of several communicators that fail at nearly the same time all arrive, in order, behind what was sent.
void reports() {
  Ends e(narrow_pair());
  Message a(1, 1, 60000, 0), b(1, 1, 0, 60000);
  e.a->open(a.stream);
  e.b->open(b.stream);
  e.a->progress();
  CHECK(e.a->wants_write());
  for (int i = 0; i < 5; ++i) {
    e.a->send_control("report " + std::to_string(i) + std::string(3000, '.'));
  }
  e.step();
  CHECK(b.receive.done && b.in == a.out);
  for (int i = 0; i < 5; ++i) {
    const LinkEvent event = e.b->event();
    CHECK(event.kind == Kind::kControlMessage && event.text.starts_with("report " + std::to_string(i)), "%s",
          event.text.c_str());
  }
  e.a->close(a.stream);
  e.b->close(b.stream);
  expect_in_order(e, 2);
}

}  // namespace

int main() {
  for (const bool sender : {true, false}) {
    for (const bool forget : {true, false}) {
      for (const bool before : {true, false}) {
        midway(sender, forget, before);
      }
    }
  }
  held_back();
  forgetting();
  reports();
  std::printf("ok\n");
  return 0;
}
