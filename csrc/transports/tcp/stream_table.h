// Which streams a TCP link has: those that are open here, those that only the peer has begun, and which were open once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "transports/tcp/flow_control.h"
#include "transports/tcp/stream.h"
#include "transports/transport.h"

namespace collectives::tcp {

class StreamTable {
 public:
  explicit StreamTable(FlowControl& flow);
  ~StreamTable();
  StreamTable(const StreamTable&) = delete;
  StreamTable& operator=(const StreamTable&) = delete;

  // The stream meets what the peer has sent of it so far.
  TcpStream& open(Stream& stream);
  void close(TcpStream& s);
  // Counts a stream as opened.
  void mark_opened(const StreamKey& key) {
    const std::uint32_t number = key.communicator & kNumberBits;
    if (number != marked_number_ || marked_ == nullptr) [[unlikely]] {
      marked_ = &opened_[number];
      marked_number_ = number;
    }
    (*marked_)[window_of(key)].mark(key.sequence);
  }
  // Drops the streams of the communicator that only the peer has begun, and those that still come.
  void forget(std::uint32_t communicator);

  // nullptr where no stream of that name is open, or has been begun by the peer.
  TcpStream* find(const StreamKey& key) {
    if (!collectives_.empty() && collectives_.back()->key == key) {
      return collectives_.back();  // most often the only one
    }
    const auto known = streams_.find(key);
    return known == streams_.end() ? nullptr : &known->second;
  }
  // Whether a stream that is not found is over, or belongs to a communicator that this rank has left.
  bool is_over(const StreamKey& key) const;
  // A stream that is not known yet, begun by the peer.
  TcpStream& add_unknown(const StreamKey& key);

  // See Link.
  std::optional<Arrival> arrival(const StreamKey& key) const;
  void listen(std::uint32_t communicator, std::vector<StreamKey>* begun);

  // The collectives that are open, oldest first.
  const std::vector<TcpStream*>& collectives() const { return collectives_; }
  bool any_collective_sends() const {
    return std::any_of(collectives_.begin(), collectives_.end(),
                       [](const TcpStream* s) { return !s->stream->sends.empty(); });
  }

 private:
  using Streams = std::unordered_map<StreamKey, TcpStream, StreamKeyHash>;
  // Which streams count together: collectives of a communicator, or messages of one tag and direction.
  static StreamKey window_of(const StreamKey& key) { return {key.communicator, key.sequence >> kTagShift}; }
  using Windows = std::unordered_map<StreamKey, OpenedWindow, StreamKeyHash>;  // by window_of()

  TcpStream& add(const StreamKey& key);

  FlowControl& flow_;
  Streams streams_;
  std::vector<Streams::node_type> spare_streams_;  // to allocate and free them would cost a tenth of a small call
  std::vector<TcpStream*> collectives_;
  std::unordered_map<std::uint32_t, Windows> opened_;  // by the number of the communicator
  Windows* marked_ = nullptr;  // of the communicator whose stream was opened last, whose number follows
  std::uint32_t marked_number_ = 0;
  std::vector<std::uint32_t> forgotten_;                                  // communicators, sorted
  std::unordered_map<std::uint32_t, std::vector<StreamKey>*> listeners_;  // by the number of the communicator
};

}  // namespace collectives::tcp
