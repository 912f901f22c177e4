// How the TCP link hands arrived bytes and tokens to posted requests.
#include <algorithm>
#include <cstring>

#include "transports/tcp/link.h"

namespace collectives {
namespace {

// A receive from this size on is worth a system call of its own.
constexpr std::int64_t kLongBytes = 16 << 10;

}  // namespace

void apply_reduction(ReceiveRequest& r, const std::byte* received, std::int64_t bytes) {
  while (bytes > 0) {
    const Span to = r.destination.piece(bytes);
    const Span from = r.source.piece(to.bytes);
    r.combine(to.data, received, from.data, from.bytes);
    r.destination.advance(from.bytes);
    r.source.advance(from.bytes);
    received += from.bytes;
    bytes -= from.bytes;
  }
}

void skip_empty_spans(ReceiveRequest& r) {
  r.destination.seek(r.destination.offset());
  if (r.reduce != nullptr) {
    r.source.seek(r.source.offset());
  }
}

// Completes the requests at the front that need no more bytes.
bool TcpLink::complete_ready(TcpStream& s) {
  auto& receives = s.stream->receives;
  bool any = false;
  while (!receives.empty()) {
    ReceiveRequest& r = *receives.front();
    if (r.token) {
      if (s.tokens == 0) {
        break;
      }
      --s.tokens;
    } else if (r.remaining > 0) {
      break;
    }
    s.stream->end_receive();
    any = true;
  }
  return any;
}

// Puts bytes of the stream where the posted requests want them; returns how many were wanted.
std::int64_t TcpLink::deliver(TcpStream& s, const std::byte* data, std::int64_t bytes) {
  std::int64_t taken = 0;
  while (true) {
    complete_ready(s);
    if (taken == bytes || s.stream->receives.empty() || s.stream->receives.front()->token) {
      return taken;
    }
    ReceiveRequest& r = *s.stream->receives.front();
    const std::int64_t part = std::min(bytes - taken, r.remaining);
    skip_empty_spans(r);
    if (r.reduce != nullptr) {
      reduce_bytes(s, r, data + taken, part);
    } else {
      for (std::int64_t done = 0; done < part;) {
        const Span to = r.destination.piece(part - done);
        std::memcpy(to.data, data + taken + done, static_cast<std::size_t>(to.bytes));
        r.destination.advance(to.bytes);
        done += to.bytes;
      }
    }
    r.remaining -= part;
    taken += part;
    s.consumed += part;
  }
}

// Takes all of `bytes`; what is less than an element stays in s.partial.
void TcpLink::reduce_bytes(TcpStream& s, ReceiveRequest& r, const std::byte* data, std::int64_t bytes) {
  const std::size_t element = r.element;
  auto left = static_cast<std::size_t>(bytes);
  if (s.partial_bytes > 0) {
    const std::size_t part = std::min(left, element - s.partial_bytes);
    std::memcpy(s.partial.data() + s.partial_bytes, data, part);
    s.partial_bytes += part;
    data += part;
    left -= part;
    if (s.partial_bytes < element) {
      return;
    }
    s.partial_bytes = 0;
    apply_reduction(r, s.partial.data(), static_cast<std::int64_t>(element));
  }
  std::size_t whole = left - left % element;
  left -= whole;
  if (reinterpret_cast<std::uintptr_t>(data) % element == 0) {
    apply_reduction(r, data, static_cast<std::int64_t>(whole));
    data += whole;
  } else {
    const std::size_t most = sizeof(bounce_->bytes) - sizeof(bounce_->bytes) % element;
    while (whole > 0) {
      const std::size_t part = std::min(whole, most);
      std::memcpy(bounce_->bytes, data, part);
      apply_reduction(r, bounce_->bytes, static_cast<std::int64_t>(part));
      data += part;
      whole -= part;
    }
  }
  std::memcpy(s.partial.data(), data, left);
  s.partial_bytes = left;
}

bool TcpLink::awaits_long(const TcpStream& s) {
  return !s.stream->receives.empty() && s.stream->receives.front()->remaining >= kLongBytes;
}

bool TcpLink::deliver_stash(TcpStream& s) {
  const auto taken =
      static_cast<std::size_t>(deliver(s, s.stash.data() + s.stash_head, static_cast<std::int64_t>(s.stashed())));
  s.stash_head += taken;
  if (s.stash_head == s.stash.size()) {
    s.stash.clear();
    s.stash_head = 0;
  }
  return taken > 0;
}

// Serves requests of collectives that wait for nothing: sends of no bytes, receives posted after their bytes or tokens
// had arrived.
bool TcpLink::settle() {
  bool moved = false;
  long_awaited_ = long_awaiting_ > 0;
  for (TcpStream* s : open_) {
    auto& sends = s->stream->sends;
    while (!sends.empty() && !sends.front()->token && sends.front()->remaining == 0) {
      s->stream->end_send();
      moved = true;
    }
    if (!s->mismatch && !s->stream->receives.empty()) {
      moved |= complete_ready(*s);
      if (s->stashed() > 0) {
        moved |= deliver_stash(*s);
      }
      long_awaited_ |= awaits_long(*s);
    }
  }
  return moved;
}

}  // namespace collectives
