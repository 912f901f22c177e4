#include "transports/tcp/delivery.h"

#include <algorithm>
#include <cstring>

namespace collectives::tcp {
namespace {

// Combines the next `bytes`, whole elements, with those of the request; `received` is aligned to the element.
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

// SpanCursor::piece() gives nothing inside an empty span, and a fresh cursor may stand on one.
void skip_empty_spans(ReceiveRequest& r) {
  r.destination.seek(r.destination.offset());
  if (r.reduce != nullptr) {
    r.source.seek(r.source.offset());
  }
}

}  // namespace

bool Delivery::complete_ready(TcpStream& s) {
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

std::int64_t Delivery::deliver(TcpStream& s, const std::byte* data, std::int64_t bytes) {
  std::int64_t used = 0;
  while (true) {
    complete_ready(s);
    if (used == bytes || s.stream->receives.empty() || s.stream->receives.front()->token) {
      return used;
    }
    ReceiveRequest& r = *s.stream->receives.front();
    const std::int64_t part = std::min(bytes - used, r.remaining);
    skip_empty_spans(r);
    if (r.reduce != nullptr) {
      reduce_bytes(s, r, data + used, part);
    } else {
      for (std::int64_t done = 0; done < part;) {
        const Span to = r.destination.piece(part - done);
        std::memcpy(to.data, data + used + done, static_cast<std::size_t>(to.bytes));
        r.destination.advance(to.bytes);
        done += to.bytes;
      }
    }
    r.remaining -= part;
    used += part;
    s.consumed += part;
  }
}

// Consumes all of `bytes`; what is less than an element stays in s.partial.
void Delivery::reduce_bytes(TcpStream& s, ReceiveRequest& r, const std::byte* data, std::int64_t bytes) {
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

bool Delivery::serve(TcpStream& s) {
  const bool completed = complete_ready(s);
  if (s.stashed() == 0) {
    return completed;
  }
  const auto used =
      static_cast<std::size_t>(deliver(s, s.stash.data() + s.stash_head, static_cast<std::int64_t>(s.stashed())));
  s.stash_head += used;
  if (s.stash_head == s.stash.size()) {
    s.stash.clear();
    s.stash_head = 0;
  }
  return completed || used > 0;
}

std::size_t Delivery::plan_landing(TcpStream& s, std::size_t bytes, iovec* vectors, int most, int* count) {
  ReceiveRequest& front = *s.stream->receives.front();
  skip_empty_spans(front);
  if (front.reduce != nullptr) {
    std::memcpy(bounce_->bytes, s.partial.data(), s.partial_bytes);
    const std::size_t landing =
        std::min({bytes, static_cast<std::size_t>(front.remaining), sizeof(bounce_->bytes) - s.partial_bytes});
    vectors[(*count)++] = {bounce_->bytes + s.partial_bytes, landing};
    return landing;
  }
  const auto landing = static_cast<std::int64_t>(std::min(bytes, static_cast<std::size_t>(front.remaining)));
  SpanCursor cursor = front.destination;
  std::int64_t planned = 0;
  while (planned < landing && *count < most) {
    const Span to = cursor.piece(landing - planned);
    vectors[(*count)++] = {to.data, static_cast<std::size_t>(to.bytes)};
    planned += to.bytes;
    cursor.advance(to.bytes);
  }
  return static_cast<std::size_t>(planned);
}

void Delivery::land(TcpStream& s, std::size_t bytes) {
  ReceiveRequest& r = *s.stream->receives.front();
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
}

}  // namespace collectives::tcp
