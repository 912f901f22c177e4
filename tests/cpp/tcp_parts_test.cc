// The parts of the TCP link, each without the others.
#include "tcp_link_traffic.h"

namespace {

using namespace tcp_link_test;  // NOLINT

constexpr std::uint32_t kMessage = kMessageBit | 7;

// A stream with one request each way.
struct Opened {
  Stream stream;
  SendRequest send;
  ReceiveRequest receive;
  TcpStream state;

  Opened(StreamKey key, std::int64_t sends, std::int64_t receives) {
    stream.key = state.key = key;
    state.stream = &stream;
    send.remaining = sends;
    receive.remaining = receives;
    if (sends > 0) {
      stream.sends.push_back(&send);
    }
    if (receives > 0) {
      stream.receives.push_back(&receive);
    }
  }
  Opened(const Opened&) = delete;
};

void test_how_much_may_be_sent() {
  tcp::FlowControl flow;
  Opened o({1, 0}, 64 << 20, 0);
  CHECK(flow.sendable(o.state) == wire::kEagerBytes);
  flow.count_sent(o.state, wire::kEagerBytes);
  CHECK(flow.sendable(o.state) == 0);
  o.state.acked = 1000;
  CHECK(flow.sendable(o.state) == 0, "a short frame waits for more credit");
  flow.count_peer_started(o.state);
  CHECK(flow.sendable(o.state) == wire::kWindowBytes - wire::kEagerBytes + 1000);
  o.send.remaining = 10;
  CHECK(flow.sendable(o.state) == 10, "the end of a message does not wait");

  Opened many({1, 1}, 64 << 20, 0);
  flow.count_sent(many.state, wire::kAheadBytes);
  Opened late({1, 2}, 64 << 20, 0);
  CHECK(flow.sendable(late.state) == wire::kEagerMessageBytes);
  flow.count_closed(many.state);
  CHECK(flow.sendable(late.state) == wire::kEagerBytes);
}

void test_how_many_streams_may_start() {
  tcp::FlowControl flow;
  Opened sent({kMessage, 0}, 8, 0), received({kMessage, 1}, 0, 8), collective({1, 0}, 8, 8);
  const auto may_start = [&] {
    return std::vector<bool>{flow.may_start(sent.state), flow.may_start(received.state),
                             flow.may_start(collective.state)};
  };
  const auto start = [&](std::uint32_t until) {
    while (flow.started() < until) {
      flow.count_started();
    }
  };
  CHECK((may_start() == std::vector<bool>{true, true, true}));
  start(wire::kStreamsAhead);
  CHECK((may_start() == std::vector<bool>{false, true, true}));
  start(wire::kReceivesAhead);
  CHECK((may_start() == std::vector<bool>{false, false, true}));
  start(wire::kMaxUnknownStreams);
  CHECK((may_start() == std::vector<bool>{false, false, false}) && !flow.may_start_sendrecv());
  sent.state.peer_started = true;
  CHECK((may_start() == std::vector<bool>{true, false, false}));
  CHECK(!flow.is_possible_opened(wire::kMaxUnknownStreams + 1) && flow.is_possible_opened(wire::kMaxUnknownStreams));
  flow.set_peer_opened(wire::kMaxUnknownStreams);
  CHECK((may_start() == std::vector<bool>{true, true, true}) && !flow.is_possible_opened(0));
}

void test_which_streams_there_are() {
  tcp::FlowControl flow;
  tcp::StreamTable table(flow);
  CHECK(table.find({1, 0}) == nullptr && !table.is_over({1, 0}));
  TcpStream& early = table.add_unknown({1, 0});
  flow.count_peer_started(early);
  early.received = 5;
  flow.count_unknown_bytes(5);
  CHECK(table.find({1, 0}) == &early && flow.unknown() == 1);

  Stream stream;
  stream.key = {1, 0};
  CHECK(&table.open(stream) == &early && stream.peer_seen && stream.link_state == &early);
  CHECK(flow.unknown() == 0 && flow.opened() == 1 && table.collectives().size() == 1);
  table.close(early);
  CHECK(table.find({1, 0}) == nullptr && table.is_over({1, 0}) && !table.is_over({1, 1}));

  table.add_unknown({2, 0});
  table.add_unknown({kMessageBit | 2, 0});
  table.add_unknown({3, 0});
  table.forget(2);
  table.forget(2);
  CHECK(flow.unknown() == 1 && flow.opened() == 3 && table.is_over({2, 9}) && table.find({3, 0}) != nullptr);
}

void test_messages_start_in_order() {
  tcp::FlowControl flow;
  tcp::OpenMessages messages(flow);
  while (flow.started() < wire::kStreamsAhead) {
    flow.count_started();
  }
  Opened first({kMessage, 0}, 8, 0), second({kMessage, 1}, 8, 0), awaited({kMessage, 2}, 0, 8),
      late({kMessage, 3}, 8, 0);
  for (Opened* o : {&first, &second, &awaited}) {
    messages.enter(o->state);
  }
  CHECK(messages.any() && messages.sending() == 2 && messages.ready() == 2);
  while (messages.ready() > 0) {
    TcpStream* const s = messages.next(messages.ready());
    CHECK(messages.must_hold(*s));
    messages.hold(*s);
  }
  CHECK(messages.next(0) == nullptr && !messages.may_send() && messages.next_credit() == nullptr);
  messages.announce_quiet();
  CHECK(messages.next_credit() == &awaited.state, "receives may be announced when no message may begin");
  flow.set_peer_opened(1);
  CHECK(messages.next(0) == &first.state && !messages.must_hold(first.state));
  messages.enter(late.state);
  CHECK(messages.must_hold(late.state), "others are before it");
  for (Opened* o : {&first, &second, &awaited, &late}) {
    messages.leave(o->state);
  }
  CHECK(!messages.any() && messages.sending() == 0 && !messages.may_send());
}

void test_output_writes_packed_bytes_and_then_the_frame() {
  const auto [ours, theirs] = unix_pair();
  tcp::Connection connection(ours, 1);
  std::int64_t counted = 0;
  tcp::Output output(connection, counted);
  Bytes data(2 * tcp::kPackBytes);
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] = pattern(1, static_cast<std::int64_t>(i));
  }
  Span span{data.data(), static_cast<std::int64_t>(data.size())};
  Opened o({1, 0}, span.bytes, 0);
  o.send.source = SpanCursor(Buffer{&span, 1, span.bytes});
  CHECK(output.empty());
  output.append("head", 4);
  CHECK(!output.append_payload(o.state, 3), "a short payload is packed");
  CHECK(output.packed_bytes() == 7 && counted == 3 && o.send.remaining == span.bytes - 3);
  CHECK(output.append_payload(o.state, o.send.remaining) && output.packed_bytes() == 7 && counted == 3);
  const tcp::Output::Written written = output.write_once();
  CHECK(written.any && written.all && written.of_stream == &o.state && output.empty() && !output.is_blocked());
  CHECK(counted == span.bytes && o.send.remaining == 0 && o.stream.bytes_sent == span.bytes);
  Bytes got(4 + data.size());
  CHECK(::recv(theirs, got.data(), got.size(), MSG_WAITALL) == static_cast<ssize_t>(got.size()));
  CHECK(std::memcmp(got.data(), "head", 4) == 0 && std::memcmp(got.data() + 4, data.data(), data.size()) == 0);
  ::close(theirs);
}

void test_an_error_is_reported_once_all_is_read() {
  const auto [ours, theirs] = unix_pair();
  tcp::Connection connection(ours, 3);
  CHECK(connection.is_undisturbed() && connection.descriptor() == ours);
  connection.keep_error(EPIPE);
  CHECK(!connection.is_undisturbed() && !connection.is_down());
  connection.ended(0);
  const LinkEvent event = connection.next_event();
  CHECK(event.kind == Kind::kFailed && event.ended && connection.is_down() && connection.descriptor() == -1);
  CHECK(event.text.starts_with("link to rank 3: ") &&
        event.text.find("errno " + std::to_string(EPIPE)) < event.text.size());
  connection.fail("again");
  CHECK(connection.next_event().kind == Kind::kNone);
  ::close(theirs);
}

}  // namespace

int main() {
  test_how_much_may_be_sent();
  test_how_many_streams_may_start();
  test_which_streams_there_are();
  test_messages_start_in_order();
  test_output_writes_packed_bytes_and_then_the_frame();
  test_an_error_is_reported_once_all_is_read();
  std::printf("ok\n");
}
