// A message link over a connected stream socket. The frames are described in wire.h.
//
// Flow control. Of every stream a sender has at most eager_bytes() in flight until it has heard the peer on that stream
// (which proves that the peer opened it), then kWindowBytes; less when much is ahead already (kAheadBytes). "In flight"
// means not yet consumed: delivered into a posted receive. Every frame of a stream carries how much its sender has
// consumed, so ranks that exchange data need no frames of their own for that; a rank that only receives sends a credit
// frame per kCreditBytes consumed, while it has receives posted. It also sends one, with no data consumed yet, when its
// receives add up to more than half the eager limit, or when it has waited for kIdleRounds calls of progress(): so the
// peer's window opens before the peer runs into the eager limit, and the signatures of two ranks that both only wait
// for each other still meet. Nothing of that happens to short messages.
//
// A receiver never stops reading its socket: what cannot be delivered goes to a stash, which flow control bounds. The
// number of streams that a rank may begin before the peer opens them is bounded in the same way (wire::kStreamsAhead).
// Where the bound may have been reached, receives are made known at once: their streams may always begin.
//
// Of collectives few streams are open at a time, and what they want is asked of each in every call of progress(). Of
// messages there may be very many; each stands in the rows that say what may be done for it, and is looked at when
// something has come for it, or has been sent.
//
// Bytes of a stream whose signature differs from the peer's are kept from the caller's memory.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "transports/tcp/stream.h"
#include "transports/tcp/wire.h"
#include "transports/transport.h"

namespace collectives {

class TcpLink : public Link {
 public:
  TcpLink(int fd, int peer_rank);
  ~TcpLink() override;
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;

  std::string_view transport() const override { return "tcp"; }
  void open(Stream& stream) override;
  void close(Stream& stream) override;
  bool begin_swap(const Swap& swap) override;
  std::byte* finish_swap(const Swap& swap, int looks) override;
  void open_begun(Stream& stream, const Swap& swap) override;
  void forget(std::uint32_t communicator) override;
  bool progress() override;
  void abort(const std::string& report) override;
  // Blocks, for about a second at most.
  void shut_down() override;
  LinkEvent event() override;
  // -1 after kClosed, kFailed and shut_down().
  int descriptor() const override { return down_ ? -1 : fd_; }
  bool wants_write() const override { return !down_ && blocked_ && has_output(); }

  // Streams that the peer has begun and this rank has not opened.
  std::size_t unknown_streams() const { return unknown_; }

 private:
  // tcp_link.cc
  bool progress_all();
  TcpStream& add_stream(const StreamKey& key);
  void fail(const std::string& why);
  void ended(int error);
  void push_event(LinkEvent::Kind kind, const std::string& text);
  bool all_sent() const;
  void drain();
  bool is_open() const { return !open_.empty() || messages_ > 0; }
  void enter(TcpStream& s);
  void leave(TcpStream& s);
  void review(TcpStream& s);
  void announce_quiet();

  // Payloads up to this size are copied behind their header: that is cheaper than another entry for the kernel, it lets
  // many small frames go out with one call, and the request is done at once.
  static constexpr std::int64_t kPackBytes = 2048;

  // tcp_link_send.cc
  bool has_output() const { return out_head_ < out_.size() || frame_left_ > 0; }
  bool fill();
  void fill_credits();
  bool fill_turn(std::int64_t max_frame, bool* big);
  bool fill_collectives(std::int64_t max_frame, bool* big);
  bool fill_messages(std::int64_t max_frame, bool* big);
  bool append_data(TcpStream& s, std::int64_t bytes);
  void end_message_send(TcpStream& s);
  TcpStream* next_message(std::size_t ready) const;
  void give_credit(TcpStream& s);
  bool write_some();
  bool sends_left() const;
  bool may_answer() const;
  ssize_t offer(iovec* vectors, int count) const;
  bool write_once(bool* moved);
  bool may_speak(const TcpStream& s) const;
  bool peer_is_held_back() const;
  bool credit_due(const TcpStream& s) const;
  bool wants_to_speak(const TcpStream& s) const;
  std::int64_t sendable(const TcpStream& s) const;
  void append_frame(wire::FrameType type, TcpStream* s, std::int64_t length);
  void append_bytes(const void* data, std::size_t bytes);
  void finish_frame_from_copy();
  void count_sent(std::int64_t bytes) {
    bytes_sent += bytes;
    frame_stream_->stream->bytes_sent += bytes;
  }

  // tcp_link_swap.cc
  bool is_idle() const;
  bool take_swap(const Swap& swap);

  // tcp_link_deliver.cc
  bool settle();
  static bool complete_ready(TcpStream& s);
  std::int64_t deliver(TcpStream& s, const std::byte* data, std::int64_t bytes);
  static bool awaits_long(const TcpStream& s);
  bool deliver_stash(TcpStream& s);
  void reduce_bytes(TcpStream& s, ReceiveRequest& r, const std::byte* data, std::int64_t bytes);

  // tcp_link_receive.cc
  bool read_some();
  void parse();
  void on_header(const wire::FrameHeader& header);
  void on_stream_frame(const wire::FrameHeader& header);
  TcpStream* stream_of(const wire::FrameHeader& header);
  void on_payload(const std::byte* data, std::size_t bytes);
  // Which streams count together: collectives of a communicator, or messages of one tag and direction.
  static StreamKey window_of(const StreamKey& key) { return {key.communicator, key.sequence >> kTagShift}; }
  void mark_opened(const StreamKey& key) {
    const std::uint32_t number = key.communicator & kNumberBits;
    if (number != marked_number_ || marked_ == nullptr) [[unlikely]] {
      marked_ = &opened_[number];
      marked_number_ = number;
    }
    (*marked_)[window_of(key)].mark(key.sequence);
  }
  bool was_opened(const StreamKey& key) const;
  void note_taken() { ++streams_taken_; }
  // Not more of our streams than there are, and not fewer than before.
  bool counts_our_streams(const wire::FrameHeader& h) const {
    return h.streams_taken - peer_taken_ <= streams_started_ - peer_taken_;
  }
  bool can_land(const TcpStream* s) const;
  std::size_t plan_landing(iovec* vectors, int* count);
  void land(std::size_t bytes);

  int fd_;
  const int peer_;
  bool down_ = false;
  bool bye_received_ = false;
  int socket_error_ = 0;  // of the first call that failed for good, where it is not reported yet
  int idle_ = 0;          // calls of progress() in a row that moved nothing
  std::deque<LinkEvent> events_;

  using Streams = std::unordered_map<StreamKey, TcpStream, StreamKeyHash>;
  Streams streams_;
  std::vector<Streams::node_type> spare_streams_;  // taking and giving back memory would cost a tenth of a small call
  std::vector<TcpStream*> open_;                   // of collectives
  using Sending = Row<TcpStream, TcpSends>;
  using Receiving = Row<TcpStream, TcpReceives>;
  std::size_t messages_ = 0;       // open
  std::size_t sending_ = 0;        // of these, with something to send
  std::size_t long_awaiting_ = 0;  // of these, long ones to be received
  Sending ready_;                  // may have something that can be sent
  Sending held_;                   // may not begin before the peer has taken others
  Receiving quiet_;                // the peer need not know of them yet
  Receiving waiting_;              // it should, and perhaps they may not begin before it has taken others
  Receiving due_;                  // it is owed credit
  using Windows = std::unordered_map<StreamKey, OpenedWindow, StreamKeyHash>;  // by window_of()
  std::unordered_map<std::uint32_t, Windows> opened_;                          // by the number of the communicator
  Windows* marked_ = nullptr;  // of the communicator whose stream was opened last, whose number follows
  std::uint32_t marked_number_ = 0;
  std::vector<std::uint32_t> forgotten_;  // communicators, sorted
  std::size_t unknown_ = 0;
  std::int64_t unknown_bytes_ = 0;     // of these, declared by the peer
  std::int64_t ahead_ = 0;             // bytes sent on streams on which the peer has not been heard
  std::uint32_t streams_started_ = 0;  // by us
  std::uint32_t peer_taken_ = 0;       // of these, opened by the peer
  std::uint32_t streams_taken_ = 0;    // begun by the peer and opened here
  std::uint32_t taken_announced_ = 0;

  // Output: first out_ from out_head_ on, then frame_left_ bytes of frame_request_.
  std::vector<std::byte> out_;
  std::size_t out_head_ = 0;
  TcpStream* frame_stream_ = nullptr;
  SendRequest* frame_request_ = nullptr;
  std::int64_t frame_left_ = 0;
  bool blocked_ = false;        // the socket did not take everything
  std::int64_t swap_left_ = 0;  // of a swap that has begun: bytes of its message to be sent behind out_
  std::size_t turn_ = 0;
  bool messages_first_ = false;      // in the next turn
  std::deque<std::string> reports_;  // to be sent

  // Input: in_ holds in_bytes_, none or the beginning of a header, whenever the link waits for more; after a
  // finish_swap() in vain anything, until open_begun().
  template <std::size_t kBytes>
  struct alignas(64) Aligned {
    std::byte bytes[kBytes];
  };
  using InputBuffer = Aligned<64 << 10>;
  using Bounce = Aligned<512 << 10>;
  std::unique_ptr<InputBuffer> in_;
  std::size_t in_bytes_ = 0;
  bool long_awaited_ = false;       // some stream waits for a long message
  std::unique_ptr<Bounce> bounce_;  // what the reducer reads
  wire::FrameHeader frame_;         // the frame being read
  std::size_t payload_left_ = 0;
  TcpStream* current_ = nullptr;  // its stream; nullptr: nobody wants the payload
  std::string report_;
};

// Takes ownership of a connected, authenticated stream socket (TCP, or a Unix socket pair).
std::unique_ptr<Link> make_tcp_link(int fd, int peer_rank);

}  // namespace collectives
