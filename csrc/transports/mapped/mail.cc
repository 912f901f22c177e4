#include "transports/mapped/mail.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/intrusive_list.h"
#include "transports/consume.h"

namespace collectives {
namespace {

constexpr std::int64_t kEagerBytes = kFifoCellBytes;
// Messages that a rank may begin before the peer asks for them; for more of them it waits.
constexpr std::uint64_t kMaxUnexpected = 2048;

struct KeyHash {
  std::size_t operator()(const StreamKey& key) const {
    return std::hash<std::uint64_t>()(key.sequence * 0x9e3779b97f4a7c15U + key.communicator);
  }
};

struct MailStream : ListNode<MailStream> {
  Stream* stream = nullptr;  // nullptr until this rank opens it
  Signature signature;       // the peer's
  bool peer_begun = false;   // a cell of data of the peer has come
  std::uint64_t order = 0;   // Arrival::order, where that was before this rank opened it
  bool begun = false;        // a cell of data has gone
  bool welcome = false;      // the peer waits for it, or for the rest
  bool welcomed = false;     // this rank has told the peer that it waits
  std::int64_t sent = 0;
  std::int64_t received = 0;
  std::vector<std::byte> stash;  // arrived and not delivered: from stash_head on
  std::int64_t stash_head = 0;
  std::int64_t tokens = 0;
};

class MappedMail final : public Link {
 public:
  MappedMail(const Domain& domain, int peer, std::string_view transport)
      : domain_(domain), me_(domain.rank()), peer_(peer), transport_(transport) {}

  std::string_view transport() const override { return transport_; }

  void open(Stream& stream) override {
    MailStream& s = streams_[stream.key];
    latest_[window_of(stream.key)] = stream.key.sequence;
    s.stream = &stream;
    stream.link_state = &s;
    if (s.peer_begun) {
      --unexpected_;
      count_opened();
      stream.meet(s.signature);
      deliver(s);
    }
    if (!stream.sends.empty() || wants_more(s)) {
      ready_.push_back(s);
    } else if (!s.peer_begun && !stream.receives.empty()) {
      awaited_.push_back(s);
    }
  }

  void close(Stream& stream) override {
    if (stream.link_state == nullptr) {
      return;
    }
    IntrusiveList<MailStream>::remove(*static_cast<MailStream*>(stream.link_state));
    stream.link_state = nullptr;
    streams_.erase(stream.key);
  }

  std::optional<Arrival> arrival(const StreamKey& key) const override {
    const auto known = streams_.find(key);
    if (known == streams_.end() || known->second.stream != nullptr || !known->second.peer_begun) {
      return std::nullopt;
    }
    return Arrival{known->second.signature, known->second.order};
  }

  // A link of one communicator.
  void listen(std::uint32_t /*communicator*/, std::vector<StreamKey>* begun) override { listener_ = begun; }

  bool progress() override {
    const bool moved = receive();
    return send() || moved;
  }

  // Failure and departure travel through the control page of the domain.
  void send_control(const std::string& /*report*/) override {}
  void shut_down() override {}
  LinkEvent event() override { return {}; }
  int descriptor() const override { return -1; }

 private:
  bool full() {
    if (written_ - acknowledged_ == kFifoCells) {
      // Acquire: the peer has read the cell that is filled next.
      acknowledged_ = domain_.ack(me_, peer_, Channel::kMail).value.load(std::memory_order_acquire);
    }
    return written_ - acknowledged_ == kFifoCells;
  }

  void put(const StreamKey& key, const Signature& signature, MailKind kind, std::int64_t bytes) {
    FifoCell& cell = domain_.cell(me_, peer_, written_, Channel::kMail);
    cell.sequence = key.sequence;
    cell.communicator = key.communicator;
    cell.kind = kind;
    cell.bytes = static_cast<std::uint64_t>(bytes);
    cell.signature = signature;
    cell.word.store(++written_, std::memory_order_release);  // after all of the cell
    domain_.wake(peer_);
  }

  // The stream that sends next; nullptr: none may.
  MailStream* next() const {
    if (!ready_.empty()) {
      return ready_.front();
    }
    if (!held_.empty() && may_begin()) {
      return held_.front();
    }
    return peer_is_held_back() ? awaited_.front() : nullptr;
  }

  bool send() {
    bool moved = false;
    for (MailStream* s = next(); s != nullptr && speak(*s, &moved);) {
      s = next();
    }
    return moved;
  }

  // Sends what the stream can send now: the rest follows when something comes for it, or when it may begin. False when
  // the fifo is full.
  bool speak(MailStream& s, bool* moved) {
    if (!s.stream->receives.empty() && !s.welcomed) {
      if (full()) {
        return false;
      }
      s.welcomed = true;
      put(s.stream->key, s.stream->signature, MailKind::kWelcome, 0);
      *moved = true;
    }
    while (!s.stream->sends.empty()) {
      SendRequest& request = *s.stream->sends.front();
      if (!s.begun && !s.welcome && (!may_begin() || !(held_.empty() || held_.has(s)))) {
        held_.push_back(s);  // streams begin in the order in which they were opened
        return true;
      }
      const std::int64_t room = s.welcome ? kFifoCellBytes : kEagerBytes - s.sent;
      if (room <= 0 && !request.token) {
        break;  // until the peer waits for it
      }
      if (full()) {
        return false;
      }
      send_cell(s, request, room);
      *moved = true;
    }
    IntrusiveList<MailStream>::remove(s);
    return true;
  }

  void send_cell(MailStream& s, SendRequest& request, std::int64_t room) {
    std::byte* data = domain_.cell_data(me_, peer_, written_, Channel::kMail);
    std::int64_t filled = 0;
    while (filled < std::min(room, kFifoCellBytes) && request.remaining > 0) {
      const Span piece = request.source.piece(std::min(room - filled, request.remaining));
      std::memcpy(data + filled, piece.data, piece.bytes);
      request.source.advance(piece.bytes);
      request.remaining -= piece.bytes;
      filled += piece.bytes;
    }
    begun_ += s.begun ? 0 : 1;
    s.begun = true;
    s.sent += filled;
    bytes_sent += filled;
    put(s.stream->key, s.stream->signature, MailKind::kData, filled);
    if (request.remaining == 0) {
      s.stream->end_send();
    }
  }

  // Without being asked.
  bool may_begin() const {
    return begun_ - domain_.ack(me_, peer_, Channel::kMail).opened.load(std::memory_order_relaxed) < kMaxUnexpected;
  }
  bool peer_is_held_back() const { return unexpected_ >= kMaxUnexpected; }

  // More is expected than the peer gives without being asked.
  static bool wants_more(const MailStream& s) {
    return !s.stream->receives.empty() && s.received + s.stream->receives.front()->remaining > kEagerBytes;
  }

  void count_opened() {
    // Relaxed here and in may_begin(): a bound on how many messages are ahead, which guards no memory.
    domain_.ack(peer_, me_, Channel::kMail).opened.store(++opened_, std::memory_order_relaxed);
    domain_.wake(peer_);
  }

  // Messages of one tag and direction, which are opened in their order.
  static StreamKey window_of(const StreamKey& key) { return {key.communicator, key.sequence >> kTagShift}; }

  bool was_opened(const StreamKey& key) const {
    const auto latest = latest_.find(window_of(key));
    return latest != latest_.end() && latest->second >= key.sequence;
  }

  bool receive() {
    bool moved = false;
    for (;;) {
      const FifoCell& cell = domain_.cell(peer_, me_, read_, Channel::kMail);
      if (cell.word.load(std::memory_order_acquire) != read_ + 1) {
        return moved;
      }
      handle_cell(cell, domain_.cell_data(peer_, me_, read_, Channel::kMail));
      domain_.ack(peer_, me_, Channel::kMail).value.store(++read_, std::memory_order_release);  // after all reads
      domain_.wake(peer_);
      moved = true;
    }
  }

  void handle_cell(const FifoCell& cell, std::byte* data) {
    const StreamKey key{cell.communicator, cell.sequence};
    if (cell.kind == MailKind::kWelcome) {
      // It may come before this rank sends anything, or after all has been sent.
      if (streams_.contains(key) || !was_opened(key)) {
        MailStream& s = streams_[key];
        s.welcome = true;
        if (s.stream != nullptr && !s.stream->sends.empty()) {
          ready_.push_back(s);
        }
      }
      return;
    }
    MailStream& s = streams_[key];
    if (!s.peer_begun) {
      s.peer_begun = true;
      s.signature = cell.signature;
      if (s.stream != nullptr) {
        count_opened();
        s.stream->meet(s.signature);
        if (awaited_.has(s)) {
          IntrusiveList<MailStream>::remove(s);
        }
      } else {
        ++unexpected_;
        s.order = next_arrival();
        if (listener_ != nullptr) {
          listener_->push_back(key);
        }
      }
    }
    const auto bytes = static_cast<std::int64_t>(cell.bytes);
    std::int64_t used = 0;
    if (bytes == 0) {
      ++s.tokens;
      deliver(s);
    } else if (deliverable(s) && s.stash.empty()) {
      used = give(s, data, bytes);
    }
    s.stash.insert(s.stash.end(), data + used, data + bytes);
  }

  // Gives bytes to the requests that wait for them; returns how many it could.
  static std::int64_t give(MailStream& s, std::byte* data, std::int64_t bytes) {
    std::int64_t used = 0;
    auto& receives = s.stream->receives;
    while (used < bytes && !receives.empty()) {
      ReceiveRequest& request = *receives.front();
      used += consume(request, data + used, bytes - used);
      if (request.remaining == 0) {
        s.stream->end_receive();
      }
    }
    s.received += used;
    return used;
  }

  static bool deliverable(const MailStream& s) { return s.stream != nullptr && s.signature == s.stream->signature; }

  // Gives what has come before to the requests.
  static void deliver(MailStream& s) {
    if (!deliverable(s)) {
      return;
    }
    if (!s.stash.empty()) {
      const auto left = static_cast<std::int64_t>(s.stash.size()) - s.stash_head;
      const std::int64_t used = give(s, s.stash.data() + s.stash_head, left);
      s.stash_head += used;
      if (used == left) {
        s.stash = {};
        s.stash_head = 0;
      }
    }
    auto& receives = s.stream->receives;
    while (s.tokens > 0 && !receives.empty() && receives.front()->token) {
      s.stream->end_receive();
      --s.tokens;
    }
  }

  const Domain& domain_;
  int me_;
  int peer_;
  std::string transport_;
  std::unordered_map<StreamKey, MailStream, KeyHash> streams_;
  // There may be very many, so each open stream stands in the row of what it may do next; in none while it has nothing
  // to send until something comes for it.
  IntrusiveList<MailStream> ready_;    // have something to send
  IntrusiveList<MailStream> held_;     // are to be sent, and may not begin before the peer has opened others
  IntrusiveList<MailStream> awaited_;  // are to be received, and have not begun: the peer may be held back
  std::unordered_map<StreamKey, std::uint64_t, KeyHash> latest_;  // the last opened of each window_of()
  std::vector<StreamKey>* listener_ = nullptr;
  std::uint64_t unexpected_ = 0;  // streams that the peer has begun and this rank has not opened
  std::uint64_t opened_ = 0;      // those that it has begun and this rank has opened
  std::uint64_t begun_ = 0;       // by this rank
  std::uint64_t written_ = 0;
  std::uint64_t acknowledged_ = 0;
  std::uint64_t read_ = 0;
};

}  // namespace

std::unique_ptr<Link> make_mapped_mail(const Domain& domain, int peer, std::string_view transport) {
  return std::make_unique<MappedMail>(domain, peer, transport);
}

}  // namespace collectives
