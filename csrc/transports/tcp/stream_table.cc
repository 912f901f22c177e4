#include "transports/tcp/stream_table.h"

#include <utility>

#include "core/grow.h"

namespace collectives::tcp {
namespace {

// As many as may be open at a time without messages; the memory of further ones is given back.
constexpr std::size_t kSpareStreams = 8;

}  // namespace

StreamTable::StreamTable(FlowControl& flow) : flow_(flow) { spare_streams_.reserve(kSpareStreams); }

StreamTable::~StreamTable() {
  for (auto& [key, s] : streams_) {
    if (s.stream != nullptr) {
      s.stream->link_state = nullptr;
    }
  }
}

TcpStream& StreamTable::add(const StreamKey& key) {
  Streams::iterator position;
  if (spare_streams_.empty()) {
    position = streams_.try_emplace(key).first;
  } else {
    Streams::node_type node = std::move(spare_streams_.back());
    spare_streams_.pop_back();
    node.key() = key;
    position = streams_.insert(std::move(node)).position;
  }
  position->second.key = key;
  return position->second;
}

TcpStream& StreamTable::add_unknown(const StreamKey& key) {
  flow_.count_unknown();
  TcpStream& s = add(key);
  if (s.is_message()) {
    s.order = next_arrival();
    if (const auto listener = listeners_.find(key.communicator & kNumberBits); listener != listeners_.end()) {
      listener->second->push_back(key);
    }
  }
  return s;
}

std::optional<Arrival> StreamTable::arrival(const StreamKey& key) const {
  const auto known = streams_.find(key);
  if (known == streams_.end() || known->second.stream != nullptr || !known->second.peer_started) {
    return std::nullopt;
  }
  return Arrival{known->second.peer_signature, known->second.order};
}

void StreamTable::listen(std::uint32_t communicator, std::vector<StreamKey>* begun) {
  if (begun == nullptr) {
    listeners_.erase(communicator);
  } else {
    listeners_[communicator] = begun;
  }
}

TcpStream& StreamTable::open(Stream& stream) {
  const bool is_message = (stream.key.communicator & kMessageBit) != 0;
  if (!is_message) {
    make_room(collectives_);
  }
  mark_opened(stream.key);
  const auto known = streams_.find(stream.key);
  TcpStream& s = known == streams_.end() ? add(stream.key) : known->second;
  if (known != streams_.end() && s.stream == nullptr) {
    flow_.count_known(s);
    stream.meet(s.peer_signature);
    s.mismatch = !(s.peer_signature == stream.signature);
  }
  s.stream = &stream;
  stream.link_state = &s;
  if (!is_message) {
    collectives_.push_back(&s);
  }
  return s;
}

void StreamTable::close(TcpStream& s) {
  if (!s.is_message()) {
    collectives_.erase(std::find(collectives_.begin(), collectives_.end(), &s));
  }
  Streams::node_type node = streams_.extract(s.key);
  if (spare_streams_.size() < kSpareStreams) {
    node.mapped() = TcpStream();
    spare_streams_.push_back(std::move(node));
  }
}

void StreamTable::forget(std::uint32_t communicator) {
  const auto position = std::lower_bound(forgotten_.begin(), forgotten_.end(), communicator);
  if (position != forgotten_.end() && *position == communicator) {
    return;
  }
  forgotten_.insert(position, communicator);
  opened_.erase(communicator);
  marked_ = nullptr;
  std::erase_if(streams_, [&](const auto& entry) {
    const TcpStream& s = entry.second;
    const bool drop = (s.key.communicator & kNumberBits) == communicator && s.stream == nullptr;
    if (drop) {
      flow_.count_known(s);
    }
    return drop;
  });
}

bool StreamTable::is_over(const StreamKey& key) const {
  const std::uint32_t number = key.communicator & kNumberBits;
  if (const auto windows = opened_.find(number); windows != opened_.end()) {
    const auto window = windows->second.find(window_of(key));
    if (window != windows->second.end() && window->second.opened(key.sequence)) {
      return true;
    }
  }
  return std::binary_search(forgotten_.begin(), forgotten_.end(), number);
}

}  // namespace collectives::tcp
