#include "transports/mapped/link.h"

#include <algorithm>
#include <cstring>

#include "transports/consume.h"

namespace collectives {
namespace {

class MappedLink final : public Link {
 public:
  MappedLink(const Domain& domain, int peer, std::string_view transport)
      : domain_(domain), me_(domain.rank()), peer_(peer), transport_(transport) {}

  std::string_view transport() const override { return transport_; }
  void open(Stream& stream) override { stream_ = &stream; }
  void close(Stream& /*stream*/) override { stream_ = nullptr; }
  bool progress() override {
    if (stream_ == nullptr) {
      return false;
    }
    const bool sent = send();
    const bool received = receive();
    return sent || received;
  }
  // Failure and departure travel through the control page of the domain.
  void send_control(const std::string& /*report*/) override {}
  void shut_down() override {}
  LinkEvent event() override { return {}; }
  int descriptor() const override { return -1; }

 private:
  bool send() {
    bool moved = false;
    while (!stream_->sends.empty()) {
      SendRequest& request = *stream_->sends.front();
      if (written_ - acknowledged_ == kFifoCells) {
        // Acquire: the peer has read the cell that is filled next.
        acknowledged_ = domain_.ack(me_, peer_).value.load(std::memory_order_acquire);
        if (written_ - acknowledged_ == kFifoCells) {
          return moved;
        }
      }
      FifoCell& cell = domain_.cell(me_, peer_, written_);
      std::byte* data = domain_.cell_data(me_, peer_, written_);
      std::int64_t filled = 0;
      while (filled < kFifoCellBytes && request.remaining > 0) {
        const Span piece = request.source.piece(std::min(kFifoCellBytes - filled, request.remaining));
        std::memcpy(data + filled, piece.data, piece.bytes);
        request.source.advance(piece.bytes);
        request.remaining -= piece.bytes;
        filled += piece.bytes;
      }
      cell.sequence = stream_->key.sequence;
      cell.bytes = filled;
      cell.signature = stream_->signature;
      cell.word.store(++written_, std::memory_order_release);  // after all of the cell
      domain_.wake(peer_);
      bytes_sent += filled;
      moved = true;
      if (request.remaining == 0) {
        request.done = true;
        stream_->sends.erase(stream_->sends.begin());
      }
    }
    return moved;
  }

  bool receive() {
    bool moved = false;
    for (;;) {
      const FifoCell& cell = domain_.cell(peer_, me_, read_);
      if (cell.word.load(std::memory_order_acquire) != read_ + 1) {
        return moved;
      }
      // Cells of a later collective stay where they are until that collective runs here.
      if (cell.sequence != stream_->key.sequence) {
        return moved;
      }
      if (!stream_->peer_seen) {
        stream_->peer_seen = true;
        stream_->peer_signature = cell.signature;
        moved = true;
      }
      // With another signature the cells mean something else; the engine compares signatures and fails the
      // communicator.
      if (stream_->receives.empty() || !(stream_->peer_signature == stream_->signature)) {
        return moved;
      }
      ReceiveRequest& request = *stream_->receives.front();
      offset_ += consume(request, domain_.cell_data(peer_, me_, read_) + offset_,
                         static_cast<std::int64_t>(cell.bytes) - offset_);
      moved = true;
      if (offset_ == static_cast<std::int64_t>(cell.bytes)) {
        offset_ = 0;
        domain_.ack(peer_, me_).value.store(++read_, std::memory_order_release);  // after all reads of the cell
        domain_.wake(peer_);
      }
      if (request.remaining == 0) {
        request.done = true;
        stream_->receives.erase(stream_->receives.begin());
      }
    }
  }

  const Domain& domain_;
  int me_;
  int peer_;
  std::string transport_;
  Stream* stream_ = nullptr;
  std::uint64_t written_ = 0;
  std::uint64_t acknowledged_ = 0;
  std::uint64_t read_ = 0;
  std::int64_t offset_ = 0;  // consumed of the cell that is being read
};

}  // namespace

std::unique_ptr<Link> make_mapped_link(const Domain& domain, int peer, std::string_view transport) {
  return std::make_unique<MappedLink>(domain, peer, transport);
}

}  // namespace collectives
