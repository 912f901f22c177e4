// The receiving half of the TCP link.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transports/tcp/link.h"

namespace collectives {
namespace {

using wire::FrameType;

constexpr int kRounds = 4;
constexpr int kVectors = 32;
// Payloads from this size on are read straight to where they belong.
constexpr std::size_t kLandBytes = 4096;
// What is read at once while a long message is awaited: one more system call costs less than copying the message out of
// the input buffer.
constexpr std::size_t kShortRead = 4096;
static_assert(kShortRead > wire::kHeaderBytes);

std::string numbers(const wire::FrameHeader& h) {
  return " (type " + std::to_string(static_cast<int>(h.type)) + ", communicator " + std::to_string(h.communicator) +
         ", sequence " + std::to_string(h.sequence) + ", length " + std::to_string(h.length) + ", credit " +
         std::to_string(h.credit) + ", streams taken " + std::to_string(h.streams_taken) + ")";
}

}  // namespace

bool TcpLink::can_land(const TcpStream* s) const {
  return s != nullptr && s->stream != nullptr && !s->mismatch && s->stashed() == 0 && !s->stream->receives.empty() &&
         !s->stream->receives.front()->token && s->stream->receives.front()->remaining > 0;
}

// Where the payload in progress can be read to directly; returns the bytes, 0 when it goes through the input buffer.
std::size_t TcpLink::plan_landing(iovec* vectors, int* count) {
  if (payload_left_ < kLandBytes || frame_.type != FrameType::kData || !can_land(current_)) {
    return 0;
  }
  TcpStream& s = *current_;
  ReceiveRequest& front = *s.stream->receives.front();
  skip_empty_spans(front);
  if (front.reduce != nullptr) {
    std::memcpy(bounce_->bytes, s.partial.data(), s.partial_bytes);
    const std::size_t bytes =
        std::min({payload_left_, static_cast<std::size_t>(front.remaining), sizeof(bounce_->bytes) - s.partial_bytes});
    vectors[(*count)++] = {bounce_->bytes + s.partial_bytes, bytes};
    return bytes;
  }
  const auto bytes = static_cast<std::int64_t>(std::min(payload_left_, static_cast<std::size_t>(front.remaining)));
  SpanCursor cursor = front.destination;
  std::int64_t planned = 0;
  while (planned < bytes && *count < kVectors) {
    const Span to = cursor.piece(bytes - planned);
    vectors[(*count)++] = {to.data, static_cast<std::size_t>(to.bytes)};
    planned += to.bytes;
    cursor.advance(to.bytes);
  }
  return static_cast<std::size_t>(planned);
}

// `bytes` of the payload have been read to where plan_landing() said.
void TcpLink::land(std::size_t bytes) {
  TcpStream& s = *current_;
  ReceiveRequest& r = *s.stream->receives.front();
  payload_left_ -= bytes;
  if (r.reduce != nullptr) {
    const std::size_t have = s.partial_bytes + bytes;
    const std::size_t whole = have - have % r.element;
    apply_reduction(r, bounce_->bytes, static_cast<std::int64_t>(whole));
    s.partial_bytes = have - whole;
    std::memcpy(s.partial.data(), bounce_->bytes + whole, s.partial_bytes);
  } else {
    r.destination.advance(static_cast<std::int64_t>(bytes));
  }
  r.remaining -= static_cast<std::int64_t>(bytes);
  s.consumed += static_cast<std::int64_t>(bytes);
  complete_ready(s);
  if (s.is_message()) {
    review(s);
  }
}

bool TcpLink::read_some() {
  bool moved = false;
  for (int round = 0; round < kRounds && !down_; ++round) {
    iovec vectors[kVectors + 1];
    int count = 0;
    const std::size_t direct = plan_landing(vectors, &count);
    std::size_t offered = direct;
    if (direct == 0 || direct == payload_left_) {
      // Behind a payload that lands only the next header is wanted here, so that the next payload can land too; and not
      // much more than that when long messages are awaited.
      const std::size_t space =
          direct > 0 ? wire::kHeaderBytes : (long_awaited_ ? kShortRead : sizeof(in_->bytes)) - in_bytes_;
      vectors[count++] = {in_->bytes + in_bytes_, space};
      offered += space;
    }
    const ssize_t n =
        count == 1 ? ::recv(fd_, vectors[0].iov_base, vectors[0].iov_len, MSG_DONTWAIT) : ::readv(fd_, vectors, count);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (socket_error_ != 0) {
        ended(socket_error_);
      }
      break;
    }
    if (n <= 0) {
      ended(n < 0 ? errno : 0);
      break;
    }
    moved = true;
    const auto got = static_cast<std::size_t>(n);
    if (direct > 0) {
      land(std::min(got, direct));
    }
    in_bytes_ += got - std::min(got, direct);
    parse();
    if (got < offered) {
      break;
    }
  }
  return moved;
}

void TcpLink::parse() {
  std::size_t head = 0;
  while (!down_ && head < in_bytes_) {
    if (payload_left_ > 0) {
      const std::size_t part = std::min(payload_left_, in_bytes_ - head);
      payload_left_ -= part;
      on_payload(in_->bytes + head, part);
      head += part;
    } else if (in_bytes_ - head >= wire::kHeaderBytes) {
      std::string error;
      if (!wire::decode(in_->bytes + head, &frame_, &error)) {
        fail(error);
        break;
      }
      head += wire::kHeaderBytes;
      on_header(frame_);
    } else {
      break;
    }
  }
  in_bytes_ -= head;
  if (in_bytes_ > 0 && head > 0) {
    std::memmove(in_->bytes, in_->bytes + head, in_bytes_);
  }
}

void TcpLink::on_payload(const std::byte* data, std::size_t bytes) {
  if (frame_.type == FrameType::kAbort) {
    report_.append(reinterpret_cast<const char*>(data), bytes);
    if (payload_left_ == 0) {
      events_.push_back({LinkEvent::Kind::kAborted, std::move(report_)});
    }
    return;
  }
  if (current_ == nullptr) {
    return;
  }
  TcpStream& s = *current_;
  std::size_t taken = 0;
  if (s.stream != nullptr && !s.mismatch && s.stashed() == 0) {
    taken = static_cast<std::size_t>(deliver(s, data, static_cast<std::int64_t>(bytes)));
  }
  if (s.stash_head > 0) {  // keep the stash no longer than what it holds
    s.stash.erase(s.stash.begin(), s.stash.begin() + static_cast<std::ptrdiff_t>(s.stash_head));
    s.stash_head = 0;
  }
  s.stash.insert(s.stash.end(), data + taken, data + bytes);
  if (s.stream != nullptr && s.is_message()) {
    review(s);
  }
}

void TcpLink::on_header(const wire::FrameHeader& h) {
  if (bye_received_) {
    return fail("frame after the good-bye" + numbers(h));
  }
  if (!counts_our_streams(h)) {
    return fail("the peer claims to have taken more streams than the " + std::to_string(streams_started_) + " begun" +
                numbers(h));
  }
  peer_taken_ = h.streams_taken;
  current_ = nullptr;
  payload_left_ = h.length;
  switch (h.type) {
    case FrameType::kAbort:
      report_.clear();
      if (h.length == 0) {
        events_.push_back({LinkEvent::Kind::kAborted, ""});
      }
      break;
    case FrameType::kBye:
      bye_received_ = true;
      break;
    case FrameType::kStreams:
      break;
    default:
      on_stream_frame(h);
  }
}

bool TcpLink::was_opened(const StreamKey& key) const {
  const auto windows = opened_.find(key.communicator & kNumberBits);
  if (windows == opened_.end()) {
    return false;
  }
  const auto window = windows->second.find(window_of(key));
  return window != windows->second.end() && window->second.opened(key.sequence);
}

// The stream of the frame; nullptr when it is closed (its late frames are dropped) or when the link has failed.
TcpStream* TcpLink::stream_of(const wire::FrameHeader& h) {
  const StreamKey key{h.communicator, h.sequence};
  if (!open_.empty() && open_.back()->key == key) {
    return open_.back();  // most often the only one
  }
  const auto known = streams_.find(key);
  if (known != streams_.end()) {
    return &known->second;
  }
  if (!h.first) {
    return nullptr;  // its first frame has been here, so it was known once
  }
  if (was_opened(key) || std::binary_search(forgotten_.begin(), forgotten_.end(), h.communicator & kNumberBits)) {
    note_taken();
    return nullptr;
  }
  if (unknown_ >= wire::kMaxUnknownStreams) {
    fail("the peer has begun more than " + std::to_string(wire::kMaxUnknownStreams) + " streams ahead" + numbers(h));
    return nullptr;
  }
  ++unknown_;
  return &add_stream(key);
}

void TcpLink::on_stream_frame(const wire::FrameHeader& h) {
  current_ = stream_of(h);
  if (current_ == nullptr) {
    return;
  }
  TcpStream& s = *current_;
  if (h.first == s.heard) {
    return fail(std::string(h.first ? "a second first frame of a stream" : "a stream without a first frame") +
                numbers(h));
  }
  if (h.first) {
    s.heard = true;
    ahead_ -= s.sent;
    s.peer_signature = h.signature;
    if (s.stream != nullptr) {
      note_taken();
      s.stream->meet(h.signature);
      s.mismatch = !(h.signature == s.stream->signature);
    }
  }
  if (h.credit < static_cast<std::uint64_t>(s.acked) || h.credit > static_cast<std::uint64_t>(s.sent)) {
    return fail("credit outside [" + std::to_string(s.acked) + ", " + std::to_string(s.sent) + "]" + numbers(h));
  }
  s.acked = static_cast<std::int64_t>(h.credit);
  if (h.type == FrameType::kToken) {
    ++s.tokens;
    if (s.stream != nullptr && !s.mismatch) {
      complete_ready(s);
      if (s.stashed() > 0) {
        deliver_stash(s);
      }
    }
  } else if (h.type == FrameType::kData) {
    const std::int64_t granted = s.announced + (s.started ? wire::kWindowBytes : wire::eager_bytes(s.key.communicator));
    if (s.received + h.length > granted) {
      return fail("more data than the window allows: " + std::to_string(s.received) + " + " + std::to_string(h.length) +
                  " > " + std::to_string(granted) + numbers(h));
    }
    s.received += h.length;
    unknown_bytes_ += s.stream == nullptr ? h.length : 0;
    if (unknown_bytes_ > wire::kMaxUnknownBytes) {
      return fail("the peer has sent more than " + std::to_string(wire::kMaxUnknownBytes) +
                  " bytes of streams that are not open here" + numbers(h));
    }
  }
  if (s.stream != nullptr && s.is_message()) {
    review(s);
  }
}

}  // namespace collectives
