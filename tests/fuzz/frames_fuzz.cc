// What a peer can do to this rank over a link: any bytes, at any time, in any pieces.
//
// The first byte of an input says what is tried:
//   0  a TCP link, between opening and closing of streams, sends and receives on this side
//   1  the decoder of frame headers
//   2  the decoder of reports
//   3  an engine in the middle of a collective over such a link
// The others are a script. Whatever it is, the link ends in an event that names the peer, and the engine in an error.
//
// With clang's libFuzzer (-DCOLLECTIVES_LIBFUZZER=ON), or with the driver in mutate.cc.

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "input.h"
#include "transports/tcp/link.h"

namespace {

using namespace collectives;
using fuzz::Input;

constexpr std::size_t kMostPayload = 40000;

struct Pair {
  int ours = -1;
  int theirs = -1;
  Pair() {
    int fds[2];
    MUST(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    ours = fds[0];
    theirs = fds[1];
  }
  ~Pair() { end(); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  void end() {
    if (theirs >= 0) {
      ::close(theirs);
      theirs = -1;
    }
  }
  // What does not fit is lost, which is one more thing that a peer can do.
  void send(const void* data, std::size_t bytes) const {
    [[maybe_unused]] const ssize_t n = ::send(theirs, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void drain() const {
    char bytes[1 << 16];
    while (::recv(theirs, bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
    }
  }
};

Signature some_signature(std::uint8_t which) {
  Signature s;
  s.count_hash = which % 4 == 0 ? 7 : 1;
  return s;
}

StreamKey some_key(std::uint8_t bits) {
  const std::uint32_t communicator = bits & 1;
  const std::uint32_t message = (bits & 2) != 0 ? kMessageBit | ((bits & 4) != 0 ? kUpwardBit : 0) : 0;
  return {communicator | message, static_cast<std::uint64_t>(bits >> 3 & 3)};
}

// A frame whose fields are likely ones, with as much payload as it says, or less.
void send_frame(Input& in, const Pair& pair, const Signature& signature, const StreamKey* key) {
  wire::FrameHeader h;
  const std::uint8_t bits = in.byte();
  h.type = static_cast<wire::FrameType>(1 + bits % 6);
  h.first = (bits & 8) != 0;
  const StreamKey chosen = key != nullptr ? *key : some_key(in.byte());
  const bool of_stream = h.type <= wire::FrameType::kCredit;
  if (of_stream) {
    h.communicator = chosen.communicator;
    h.sequence = chosen.sequence;
    h.signature = signature;
    h.credit = (bits & 16) != 0 ? in.word() % 3000 : 0;
  }
  h.streams_opened = (bits & 32) != 0 ? in.byte() % 4 : 0;
  if (h.type == wire::FrameType::kData || h.type == wire::FrameType::kAbort) {
    h.length = static_cast<std::uint32_t>(1 + in.word() % kMostPayload);
  }
  std::byte header[wire::kHeaderBytes];
  wire::encode(h, header);
  if ((bits & 64) != 0) {
    header[in.byte() % sizeof(header)] = static_cast<std::byte>(in.byte());
  }
  pair.send(header, sizeof(header));
  std::size_t given = (bits & 128) != 0 ? in.byte() : h.length;
  given = std::min<std::size_t>(given, h.length);
  std::string payload(given, '\1');
  std::size_t own = std::min<std::size_t>(given, in.byte());
  const std::uint8_t* bytes = in.take(own);
  std::copy(bytes, bytes + own, payload.begin());
  pair.send(payload.data(), payload.size());
}

void send_raw(Input& in, const Pair& pair) {
  std::size_t bytes = 1 + in.byte();
  const std::uint8_t* data = in.take(bytes);
  pair.send(data, bytes);
}

template <typename T>
void add(void* const* destinations, int /*count*/, const void* const* sources, int n, std::size_t count, double) {
  MUST(n == 2);
  for (std::size_t i = 0; i < count; ++i) {
    T a;
    T b;
    std::memcpy(&a, static_cast<const T*>(sources[0]) + i, sizeof(T));
    std::memcpy(&b, static_cast<const T*>(sources[1]) + i, sizeof(T));
    a = static_cast<T>(a + b);
    std::memcpy(static_cast<T*>(destinations[0]) + i, &a, sizeof(T));
  }
}

// This side's end of a stream, with one request each way at most.
struct End {
  Stream stream;
  std::vector<std::byte> out, in, own;
  Span out_span, in_span, own_span;
  SendRequest send;
  ReceiveRequest receive;

  End(Input& input, const StreamKey& key) {
    stream.key = key;
    stream.signature = some_signature(1);
    const std::uint8_t bits = input.byte();
    const std::size_t element = std::size_t{1} << (bits >> 4 & 3);
    const std::size_t bytes = input.word() % kMostPayload / element * element;
    if ((bits & 1) != 0) {
      out.resize(bytes);
      out_span = {out.data(), static_cast<std::int64_t>(bytes)};
      send.source = SpanCursor(Buffer{&out_span, 1, out_span.bytes});
      send.remaining = out_span.bytes;
      send.token = bytes == 0;
      stream.sends.push_back(&send);
    }
    if ((bits & 2) != 0) {
      in.resize(bytes);
      own.resize(bytes);
      in_span = {in.data(), static_cast<std::int64_t>(bytes)};
      own_span = {own.data(), static_cast<std::int64_t>(bytes)};
      receive.destination = SpanCursor(Buffer{&in_span, 1, in_span.bytes});
      receive.remaining = in_span.bytes;
      receive.token = bytes == 0;
      receive.element = element;
      if ((bits & 4) != 0 && bytes > 0) {
        receive.source = SpanCursor(Buffer{&own_span, 1, own_span.bytes});
        receive.reduce = element == 1   ? add<std::uint8_t>
                         : element == 2 ? add<std::uint16_t>
                         : element == 4 ? add<std::uint32_t>
                                        : add<std::uint64_t>;
      }
      stream.receives.push_back(&receive);
    }
  }
  End(const End&) = delete;
};

// The first event that is not about a report, kNone when there was none.
LinkEvent look(TcpLink& link) {
  link.progress();
  MUST(link.unknown_streams() <= wire::kMaxUnknownStreams);
  LinkEvent event;
  do {
    event = link.event();
    MUST(event.text.size() <= wire::kMaxReportBytes);
  } while (event.kind == LinkEvent::Kind::kControlMessage);
  return event;
}

void try_link(Input& in) {
  Pair pair;
  TcpLink link(pair.ours, 1);
  std::list<End> ends;
  LinkEvent event;
  while (!in.empty() && event.kind == LinkEvent::Kind::kNone) {
    switch (in.byte() % 8) {
      case 0:
        send_raw(in, pair);
        break;
      case 1:
      case 2:
        send_frame(in, pair, some_signature(in.byte()), nullptr);
        break;
      case 3: {
        const StreamKey key = some_key(in.byte());
        // The engine opens no stream twice and none of a communicator that it has left.
        const bool twice = std::any_of(ends.begin(), ends.end(), [&](const End& end) { return end.stream.key == key; });
        if (!twice && ends.size() < 6) {
          link.open(ends.emplace_back(in, key).stream);
        }
        break;
      }
      case 4:
        if (!ends.empty()) {
          link.close(ends.front().stream);
          ends.pop_front();
        }
        break;
      case 5: {
        const std::uint32_t communicator = in.byte() & 1;
        const bool in_use = std::any_of(ends.begin(), ends.end(), [&](const End& end) {
          return (end.stream.key.communicator & kNumberBits) == communicator;
        });
        if (!in_use) {
          link.forget(communicator);
        }
        break;
      }
      case 6:
        link.send_control(std::string(in.byte(), 'r'));
        pair.drain();
        break;
      default:
        event = look(link);
    }
  }
  pair.end();
  for (int i = 0; i < 1000 && event.kind == LinkEvent::Kind::kNone; ++i) {
    event = look(link);
  }
  MUST(event.kind == LinkEvent::Kind::kFailed || event.kind == LinkEvent::Kind::kClosed);
  MUST(event.text.starts_with("link to rank 1: ") && event.text.size() < 400);
  MUST(!link.progress() || !link.progress() || !link.progress());
  MUST(link.event().kind == LinkEvent::Kind::kNone);
  for (End& end : ends) {
    MUST(end.receive.remaining >= 0 && end.send.remaining >= 0);
    link.close(end.stream);
  }
}

void try_decode(Input& in) {
  std::size_t bytes = wire::kHeaderBytes;
  const std::uint8_t* data = in.take(bytes);
  if (bytes < wire::kHeaderBytes) {
    return;
  }
  std::byte copy[wire::kHeaderBytes];
  std::memcpy(copy, data, sizeof(copy));
  wire::FrameHeader header;
  std::string error;
  if (!wire::decode(copy, &header, &error)) {
    MUST(!error.empty() && error.size() < 200);
    return;
  }
  std::byte again[wire::kHeaderBytes];
  wire::encode(header, again);
  MUST(std::memcmp(copy, again, sizeof(copy)) == 0);
}

void try_report(Input& in) {
  std::size_t bytes = in.left();
  const auto* data = reinterpret_cast<const char*>(in.take(bytes));
  const std::string text(data, bytes);
  const Report report = Report::decode(text);
  MUST(report.text.size() <= text.size() && report.counts.size() + report.shapes.size() <= text.size());
  if (!report.readable()) {
    return;
  }
  const std::string again = report.encode(8 << 10);
  MUST(again.size() <= 8 << 10);
  const Report second = Report::decode(again);
  MUST(second.kind == report.kind && second.suspect == report.suspect && second.sequence == report.sequence);
  MUST(second.encode(8 << 10) == again);
}

// A report that is likely to be understood.
void send_report(Input& in, const Pair& pair) {
  Report report;
  report.kind = static_cast<ErrorKind>(in.byte() % 9);
  report.communicator = in.byte() % 3;
  report.reporter = static_cast<int>(in.byte()) - 3;
  report.origin = static_cast<int>(in.byte()) - 3;
  report.suspect = static_cast<int>(in.byte()) - 3;
  report.other = static_cast<int>(in.byte()) - 3;
  report.sequence = static_cast<std::int64_t>(in.byte()) - 1;
  report.message = in.byte() % 4 == 0;
  report.text = "the end";
  for (int i = in.byte() % 8; i > 0; --i) {
    (i % 2 == 0 ? report.counts : report.shapes).push_back(static_cast<std::int8_t>(in.byte()));
  }
  const std::string text = report.encode(8 << 10);
  wire::FrameHeader h;
  h.type = wire::FrameType::kAbort;
  h.length = static_cast<std::uint32_t>(text.size());
  std::byte header[wire::kHeaderBytes];
  wire::encode(h, header);
  pair.send(header, sizeof(header));
  pair.send(text.data(), text.size());
}

void try_engine(Input& in) {
  Pair pair;
  std::vector<Peer> peers(2);
  peers[1].rank = 1;
  peers[1].link = std::make_unique<TcpLink>(pair.ours, 1);
  auto engine = std::make_shared<Engine>(0, std::move(peers), -1, false, nullptr);
  CommunicatorOptions options;
  options.topology.rank = 0;
  options.topology.size = 2;
  options.topology.host = {0, 1};
  options.timeout_s = 20;
  Communicator communicator(engine, nullptr, options);
  std::vector<float> values(100, 1);
  Call call;
  call.dtype = DType::kFloat32;
  call.input = {
      {reinterpret_cast<std::byte*>(values.data()), static_cast<std::int64_t>(values.size() * sizeof(float))}};
  call.output = call.input;
  call.shapes.add(std::array<std::int64_t, 1>{100});
  call.details = std::make_shared<TensorDetails>(TensorDetails{{"values"}});
  const std::shared_ptr<Work> work = communicator.post(call, false);
  const StreamKey key{0, work->sequence};
  while (!in.empty()) {
    switch (in.byte() % 4) {
      case 0:
        send_raw(in, pair);
        break;
      case 1:
        send_report(in, pair);
        break;
      default:
        send_frame(in, pair, work->signature, &key);
    }
  }
  pair.end();
  try {
    MUST(communicator.wait(*work, 10));
    // The peer has sent what the collective needs.
  } catch (const CollectivesError& error) {
    // What a well-formed report of a mismatch says is the peer's own text.
    MUST(error.kind() == ErrorKind::kMismatch || std::string(error.what()).find("rank 1") != std::string::npos);
  }
  communicator.close();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  switch (in.byte() % 4) {
    case 0:
      try_link(in);
      break;
    case 1:
      try_decode(in);
      break;
    case 2:
      try_report(in);
      break;
    default:
      try_engine(in);
  }
  return 0;
}
