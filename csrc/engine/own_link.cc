#include "engine/own_link.h"

#include <algorithm>
#include <cstring>

namespace collectives {
namespace {

// What is copied in one call of progress().
constexpr std::int64_t kPieceBytes = 1 << 20;

StreamKey other_end(const StreamKey& key) { return {key.communicator ^ kUpwardBit, key.sequence}; }

}  // namespace

void OwnLink::open(Stream& stream) {
  End& end = ends_[stream.key];
  end.stream = &stream;
  stream.link_state = &end;
  const auto other = ends_.find(other_end(stream.key));
  const bool sends = !stream.sends.empty();
  if (other == ends_.end()) {
    if (sends) {
      end.order = next_arrival();
      if (listener_ != nullptr) {
        listener_->push_back(other_end(stream.key));
      }
    }
    return;
  }
  Stream& theirs = *other->second.stream;
  end.other = &other->second;
  other->second.other = &end;
  stream.meet(theirs.signature);
  theirs.meet(stream.signature);
  if (stream.signature == theirs.signature) {
    copied_.push_back(sends ? end : other->second);
  }
}

void OwnLink::close(Stream& stream) {
  auto* const end = static_cast<End*>(stream.link_state);
  if (end == nullptr) {
    return;
  }
  stream.link_state = nullptr;
  IntrusiveList<End>::remove(*end);
  if (end->other != nullptr) {
    IntrusiveList<End>::remove(*end->other);
    end->other->other = nullptr;
  }
  ends_.erase(stream.key);
}

std::optional<Arrival> OwnLink::arrival(const StreamKey& key) const {
  const auto sender = ends_.find(other_end(key));
  if (sender == ends_.end() || sender->second.other != nullptr || sender->second.stream->sends.empty()) {
    return std::nullopt;
  }
  return Arrival{sender->second.stream->signature, sender->second.order};
}

bool OwnLink::progress() {
  bool moved = false;
  for (std::int64_t left = kPieceBytes; left > 0 && !copied_.empty();) {
    End& end = *copied_.front();
    SendRequest& from = *end.stream->sends.front();
    ReceiveRequest& to = *end.other->stream->receives.front();
    while (left > 0 && from.remaining > 0) {
      const Span target = to.destination.piece(std::min(left, from.remaining));
      const Span source = from.source.piece(target.bytes);
      std::memcpy(target.data, source.data, static_cast<std::size_t>(source.bytes));
      from.source.advance(source.bytes);
      to.destination.advance(source.bytes);
      from.remaining -= source.bytes;
      to.remaining -= source.bytes;
      left -= source.bytes;
    }
    if (from.remaining == 0) {
      IntrusiveList<End>::remove(end);
      end.other->stream->end_receive();
      end.stream->end_send();
    }
    moved = true;
  }
  return moved;
}

}  // namespace collectives
