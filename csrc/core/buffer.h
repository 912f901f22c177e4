// A buffer is a list of spans: one collective may run over many tensors without packing them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace collectives {

struct Span {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;

  bool operator==(const Span&) const = default;
};

// A view of a span list that the caller owns.
struct Buffer {
  const Span* spans = nullptr;
  std::int64_t count = 0;
  std::int64_t bytes = 0;

  // All of a list, which must live as long as the view.
  static Buffer of(std::span<const Span> list) {
    Buffer buffer{list.data(), static_cast<std::int64_t>(list.size()), 0};
    for (const Span& span : list) {
      buffer.bytes += span.bytes;
    }
    return buffer;
  }
};

// A position inside a buffer. It remembers the span of the last seek, since schedules mostly move forward.
class SpanCursor {
 public:
  SpanCursor() = default;
  explicit SpanCursor(const Buffer& buffer) : buffer_(buffer) {}

  // Moves to `offset` bytes from the start of the buffer; 0 <= offset <= buffer.bytes.
  void seek(std::int64_t offset) {
    if (offset < start_) {
      index_ = 0;
      start_ = 0;
    }
    while (index_ < buffer_.count && offset >= start_ + buffer_.spans[index_].bytes) {
      start_ += buffer_.spans[index_].bytes;
      ++index_;
    }
    offset_ = offset;
  }

  // The longest contiguous piece at the current position, at most `limit` bytes.
  Span piece(std::int64_t limit) const {
    if (index_ >= buffer_.count) {
      return {};
    }
    const Span& span = buffer_.spans[index_];
    const std::int64_t inside = offset_ - start_;
    return {span.data + inside, std::min(limit, span.bytes - inside)};
  }

  void advance(std::int64_t bytes) { seek(offset_ + bytes); }
  std::int64_t offset() const { return offset_; }

 private:
  Buffer buffer_;
  std::int64_t index_ = 0;
  std::int64_t start_ = 0;  // offset of span index_ from the start of the buffer
  std::int64_t offset_ = 0;
};

}  // namespace collectives
