// The link of a rank to itself, over which go the messages that it sends to itself.
//
// A message is copied from the sender's memory to the receiver's once both ends are open, piece by piece, so that the
// engine's lock is never held for long.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/intrusive_list.h"
#include "transports/transport.h"

namespace collectives {

class OwnLink final : public Link {
 public:
  std::string_view transport() const override { return "own"; }
  void open(Stream& stream) override;
  void close(Stream& stream) override;
  std::optional<Arrival> arrival(const StreamKey& key) const override;
  void listen(std::uint32_t /*communicator*/, std::vector<StreamKey>* begun) override { listener_ = begun; }
  bool progress() override;
  void send_control(const std::string& /*text*/) override {}
  void shut_down() override {}
  LinkEvent event() override { return {}; }
  int descriptor() const override { return -1; }

 private:
  // One end of a message.
  struct End : ListNode<End> {
    Stream* stream = nullptr;
    End* other = nullptr;     // nullptr until that is open
    std::uint64_t order = 0;  // Arrival::order, of a sender's end
  };
  struct KeyHash {
    std::size_t operator()(const StreamKey& key) const {
      return std::hash<std::uint64_t>()(key.sequence * 0x9e3779b97f4a7c15U + key.communicator);
    }
  };

  // By the name of the stream; the two ends of a message differ in their direction.
  std::unordered_map<StreamKey, End, KeyHash> ends_;
  IntrusiveList<End> copied_;  // the sender's ends of messages that are being copied
  std::vector<StreamKey>* listener_ = nullptr;
};

}  // namespace collectives
