#include "transports/tcp/receiver.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace collectives::tcp {
namespace {

using wire::FrameType;

constexpr int kRounds = 4;
constexpr int kVectors = 32;
// Payloads from this size on are read straight to where they belong.
constexpr std::size_t kLandBytes = 4096;
// What is read at once while a long message is expected: one more system call costs less than copying the message out
// of the input.
constexpr std::size_t kShortRead = 4096;
static_assert(kShortRead > wire::kHeaderBytes);

std::string numbers(const wire::FrameHeader& h) {
  return " (type " + std::to_string(static_cast<int>(h.type)) + ", communicator " + std::to_string(h.communicator) +
         ", sequence " + std::to_string(h.sequence) + ", length " + std::to_string(h.length) + ", credit " +
         std::to_string(h.credit) + ", streams opened " + std::to_string(h.streams_opened) + ")";
}

}  // namespace

// Whether the payload in progress can be read to where a receive wants it, without the way through the input.
bool Receiver::can_land() const {
  if (payload_left_ < kLandBytes || frame_.type != FrameType::kData || current_ == nullptr) {
    return false;
  }
  const TcpStream& s = *current_;
  return s.stream != nullptr && !s.mismatch && s.stashed() == 0 && !s.stream->receives.empty() &&
         !s.stream->receives.front()->token && s.stream->receives.front()->remaining > 0;
}

bool Receiver::read_some() {
  bool moved = false;
  for (int round = 0; round < kRounds && !connection_.is_down(); ++round) {
    iovec vectors[kVectors + 1];
    int count = 0;
    const std::size_t direct =
        can_land() ? delivery_.plan_landing(*current_, payload_left_, vectors, kVectors, &count) : 0;
    std::size_t offered = direct;
    if (direct == 0 || direct == payload_left_) {
      // Behind a payload that lands only the next header is wanted here, so that the next payload can land too; and not
      // much more than that when long messages are expected.
      const std::size_t space =
          direct > 0 ? wire::kHeaderBytes : (long_expected_ ? kShortRead : Input::kBytes) - input_.used;
      vectors[count++] = {input_.data() + input_.used, space};
      offered += space;
    }
    const ssize_t n = connection_.receive(vectors, count);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0 && Connection::would_block()) {
      if (connection_.error() != 0) {
        connection_.ended(connection_.error());
      }
      break;
    }
    if (n <= 0) {
      connection_.ended(n < 0 ? errno : 0);
      break;
    }
    moved = true;
    const auto got = static_cast<std::size_t>(n);
    const std::size_t landed = std::min(got, direct);
    if (direct > 0) {
      payload_left_ -= landed;
      delivery_.land(*current_, landed);
      if (current_->is_message()) {
        messages_.review(*current_);
      }
    }
    input_.used += got - landed;
    parse();
    if (got < offered) {
      break;
    }
  }
  return moved;
}

void Receiver::parse() {
  std::size_t head = 0;
  while (!connection_.is_down() && head < input_.used) {
    if (payload_left_ > 0) {
      const std::size_t part = std::min(payload_left_, input_.used - head);
      payload_left_ -= part;
      on_payload(input_.data() + head, part);
      head += part;
    } else if (input_.used - head >= wire::kHeaderBytes) {
      std::string error;
      if (!wire::decode(input_.data() + head, &frame_, &error)) {
        connection_.fail(error);
        break;
      }
      head += wire::kHeaderBytes;
      on_header(frame_);
    } else {
      break;
    }
  }
  input_.used -= head;
  if (input_.used > 0 && head > 0) {
    std::memmove(input_.data(), input_.data() + head, input_.used);
  }
}

void Receiver::on_payload(const std::byte* data, std::size_t bytes) {
  if (frame_.type == FrameType::kAbort) {
    report_.append(reinterpret_cast<const char*>(data), bytes);
    if (payload_left_ == 0) {
      connection_.push_event({LinkEvent::Kind::kControlMessage, std::move(report_)});
    }
    return;
  }
  if (current_ == nullptr) {
    return;
  }
  TcpStream& s = *current_;
  std::size_t used = 0;
  if (s.stream != nullptr && !s.mismatch && s.stashed() == 0) {
    used = static_cast<std::size_t>(delivery_.deliver(s, data, static_cast<std::int64_t>(bytes)));
  }
  if (s.stash_head > 0) {  // keep the stash no longer than what it holds
    s.stash.erase(s.stash.begin(), s.stash.begin() + static_cast<std::ptrdiff_t>(s.stash_head));
    s.stash_head = 0;
  }
  s.stash.insert(s.stash.end(), data + used, data + bytes);
  if (s.stream != nullptr && s.is_message()) {
    messages_.review(s);
  }
}

void Receiver::on_header(const wire::FrameHeader& h) {
  if (connection_.bye_received()) {
    return connection_.fail("frame after the good-bye" + numbers(h));
  }
  if (!flow_.is_possible_opened(h.streams_opened)) {
    return connection_.fail("the peer claims to have opened more streams than the " + std::to_string(flow_.started()) +
                            " begun" + numbers(h));
  }
  flow_.set_peer_opened(h.streams_opened);
  current_ = nullptr;
  payload_left_ = h.length;
  switch (h.type) {
    case FrameType::kAbort:
      report_.clear();
      if (h.length == 0) {
        connection_.push_event({LinkEvent::Kind::kControlMessage, ""});
      }
      break;
    case FrameType::kBye:
      connection_.set_bye_received();
      break;
    case FrameType::kStreams:
      break;
    default:
      on_stream_frame(h);
  }
}

// The stream of the frame; nullptr when it is closed (its late frames are dropped) or when the link has failed.
TcpStream* Receiver::stream_of(const wire::FrameHeader& h) {
  const StreamKey key{h.communicator, h.sequence};
  if (TcpStream* known = streams_.find(key); known != nullptr) {
    return known;
  }
  if (!h.first) {
    return nullptr;  // its first frame came before, so it was known once
  }
  if (streams_.is_over(key)) {
    flow_.count_opened();
    return nullptr;
  }
  if (flow_.unknown() >= wire::kMaxUnknownStreams) {
    connection_.fail("the peer has begun more than " + std::to_string(wire::kMaxUnknownStreams) + " streams ahead" +
                     numbers(h));
    return nullptr;
  }
  return &streams_.add_unknown(key);
}

void Receiver::on_stream_frame(const wire::FrameHeader& h) {
  current_ = stream_of(h);
  if (current_ == nullptr) {
    return;
  }
  TcpStream& s = *current_;
  if (h.first == s.peer_started) {
    return connection_.fail(
        std::string(h.first ? "a second first frame of a stream" : "a stream without a first frame") + numbers(h));
  }
  if (h.first) {
    flow_.count_peer_started(s);
    s.peer_signature = h.signature;
    if (s.stream != nullptr) {
      flow_.count_opened();
      s.stream->meet(h.signature);
      s.mismatch = !(h.signature == s.stream->signature);
    }
  }
  if (h.credit < static_cast<std::uint64_t>(s.acked) || h.credit > static_cast<std::uint64_t>(s.sent)) {
    return connection_.fail("credit outside [" + std::to_string(s.acked) + ", " + std::to_string(s.sent) + "]" +
                            numbers(h));
  }
  s.acked = static_cast<std::int64_t>(h.credit);
  if (h.type == FrameType::kToken) {
    ++s.tokens;
    if (s.stream != nullptr && !s.mismatch) {
      delivery_.serve(s);
    }
  } else if (h.type == FrameType::kData) {
    const std::int64_t granted = FlowControl::granted(s);
    if (s.received + h.length > granted) {
      return connection_.fail("more data than the window allows: " + std::to_string(s.received) + " + " +
                              std::to_string(h.length) + " > " + std::to_string(granted) + numbers(h));
    }
    s.received += h.length;
    flow_.count_unknown_bytes(s.stream == nullptr ? h.length : 0);
    if (flow_.too_many_unknown_bytes()) {
      return connection_.fail("the peer has sent more than " + std::to_string(wire::kMaxUnknownBytes) +
                              " bytes of streams that are not open here" + numbers(h));
    }
  }
  if (s.stream != nullptr && s.is_message()) {
    messages_.review(s);
  }
}

void Receiver::let_go_unknown(std::uint32_t communicator) {
  if (current_ != nullptr && current_->stream == nullptr &&
      (current_->key.communicator & kNumberBits) == communicator) {
    current_ = nullptr;
  }
}

}  // namespace collectives::tcp
