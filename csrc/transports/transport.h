// The two capabilities of transports: links carry messages, mapped domains let ranks address each other's memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "core/intrusive_list.h"
#include "core/link_cost.h"
#include "core/signature.h"
#include "reduce/reducer.h"

namespace collectives {

// The messages of one collective between two ranks form one stream in each direction, named by the numbers of the
// communicator and of the collective. A message that is no part of a collective is a stream of its own: the number of
// the communicator has kMessageBit, and its direction; the sequence is its tag and its number among those of that tag.
inline constexpr std::uint32_t kMessageBit = std::uint32_t{1} << 31;
inline constexpr std::uint32_t kUpwardBit = std::uint32_t{1} << 30;  // from the lower rank to the higher one
inline constexpr std::uint32_t kNumberBits = kUpwardBit - 1;
inline constexpr int kTagShift = 40;
struct StreamKey {
  std::uint32_t communicator = 0;
  std::uint64_t sequence = 0;
  friend bool operator==(const StreamKey&, const StreamKey&) = default;
};

// A send in progress. The memory must stay unchanged until remaining == 0. `bytes` may be 0: a token.
struct SendRequest {
  SpanCursor source;
  std::int64_t remaining = 0;
  bool token = false;
  bool done = false;
};

// A receive in progress: destination = received, or destination = op(received, source) when reduce is set.
struct ReceiveRequest {
  SpanCursor destination;
  SpanCursor source;  // used when reduce is set; same spans as destination when in place
  std::int64_t remaining = 0;
  bool token = false;
  ReduceFunction reduce = nullptr;
  bool source_first = false;  // the order of the operands: source, received
  std::size_t element = 1;
  double divisor = 1;
  bool done = false;

  // to = op(received, own), or op(own, received), of `bytes` bytes, whole elements.
  void combine(void* to, const void* received, const void* own, std::int64_t bytes) const {
    const void* const sources[2] = {source_first ? own : received, source_first ? received : own};
    reduce(&to, 1, sources, 2, static_cast<std::size_t>(bytes) / element, divisor);
  }
};

// The end of a link of one collective, or of one message. Owned by the work; registered with the link between open()
// and close(). Requests complete in the order in which they were posted. Those of a message are posted before it is
// opened, so that a link has to look at it only when it opens, and when something has come for it.
struct Stream : ListNode<Stream> {
  StreamKey key;
  Signature signature;     // ours
  bool peer_seen = false;  // the peer's signature has arrived
  Signature peer_signature;
  std::vector<SendRequest*> sends;        // posted and not done, oldest first
  std::vector<ReceiveRequest*> receives;  // posted and not done, oldest first
  std::int64_t bytes_sent = 0;            // payload only; counted by links that serve several communicators
  void* link_state = nullptr;             // the link's own bookkeeping
  // Where there are very many streams, the link lists those here that have changed: a request is done, or the peer's
  // signature has come.
  IntrusiveList<Stream>* changed = nullptr;
  void* owner = nullptr;  // the work or message that the stream belongs to

  void note_change() {
    if (changed != nullptr && !changed->has(*this)) {
      changed->push_back(*this);
    }
  }
  void meet(const Signature& theirs) {
    peer_seen = true;
    peer_signature = theirs;
    note_change();
  }
  void end_send() {
    sends.front()->done = true;
    sends.erase(sends.begin());
    note_change();
  }
  void end_receive() {
    receives.front()->done = true;
    receives.erase(receives.begin());
    note_change();
  }

  // As new, but for the memory of the lists.
  void reset() {
    Stream fresh;
    fresh.sends.swap(sends);
    fresh.sends.clear();
    fresh.receives.swap(receives);
    fresh.receives.clear();
    *this = std::move(fresh);
  }
};

// A collective between two ranks that begins with one message each way, of the same length (MPI calls that sendrecv).
struct SendRecv {
  StreamKey key;
  Signature signature;  // ours
  const std::byte* data = nullptr;
  std::int64_t bytes = 0;
};

// A message that the peer has begun and that this rank has not opened.
struct Arrival {
  Signature signature;      // the peer's
  std::uint64_t order = 0;  // what arrives later, over whichever link of this process, has a higher number
};

// The `order` of what arrives now.
std::uint64_t next_arrival();

// What a link reports to the engine besides data.
struct LinkEvent {
  enum class Kind : std::uint8_t { kNone, kClosed, kFailed, kControlMessage };
  Kind kind = Kind::kNone;
  std::string text;    // kControlMessage: what the peer sent (opaque to the link); kFailed: why
  bool ended = false;  // kFailed: the peer's system has closed the connection, as it does when the process ends
};

// A message link to one peer, shared by all communicators of an engine. Not thread-safe: the engine's lock guards it.
class Link {
 public:
  virtual ~Link() = default;
  virtual std::string_view transport() const = 0;  // its name
  // Registers a stream; bytes that arrived for it before are delivered to it.
  virtual void open(Stream& stream) = 0;
  virtual void close(Stream& stream) = 0;
  // A short sendrecv, which needs no stream. begin_sendrecv() begins to send the message, or returns false and has done
  // nothing: then only streams will do. finish_sendrecv() looks for the peer's up to `looks` + 1 times and returns
  // where it lies, until the link is used again; by then the own message has left. Or it returns nullptr, and
  // open_begun() must follow, which registers the stream that the message belongs to. The only request of that stream
  // sends the message; the link knows how much of it has left.
  virtual bool begin_sendrecv(const SendRecv& /*sendrecv*/) { return false; }
  virtual std::byte* finish_sendrecv(const SendRecv& /*sendrecv*/, int /*looks*/) { return nullptr; }
  virtual void open_begun(Stream& stream, const SendRecv& /*sendrecv*/) { open(stream); }
  // This rank takes no further part in the communicator: what came for streams that it has not opened is dropped, and
  // so is what still comes. Streams of it that are open are closed as usual; none is opened again.
  virtual void forget(std::uint32_t /*communicator*/) {}
  // What has come of a message that this rank has not opened, by the name that it would be opened by.
  virtual std::optional<Arrival> arrival(const StreamKey& /*key*/) const { return std::nullopt; }
  // From now on appends the names of such messages of the communicator as they begin; nullptr: no longer.
  virtual void listen(std::uint32_t /*communicator*/, std::vector<StreamKey>* /*begun*/) {}
  // Moves what can be moved without blocking; true when anything moved.
  virtual bool progress() = 0;
  // Sends a failure report, a good-bye of one communicator or a note of shrink() (best effort, no blocking); it reaches
  // the peer as LinkEvent::kControlMessage, after the data of all requests that are done.
  virtual void send_control(const std::string& text) = 0;
  // Says good-bye: everything this rank owes the peer has been sent.
  virtual void shut_down() = 0;
  // The next thing that happened, kNone when nothing did.
  virtual LinkEvent event() = 0;
  // A descriptor that becomes readable when progress() may help, or -1.
  virtual int descriptor() const = 0;
  // True when the link also waits for its descriptor to become writable.
  virtual bool wants_write() const { return false; }
  std::int64_t bytes_sent = 0;  // payload only
};

class Domain;

// How far apart the ranks are that a transport connects: threads of one process, processes of one host, any.
enum class Reach : std::uint8_t { kProcess, kHost, kNetwork };

std::string_view name(Reach reach);  // "process", "host", "network"

// A transport: how two ranks exchange data. Those within a process or a host are mapped: they let ranks address each
// other's memory, too. One that reaches over a network has links only.
struct Transport {
  std::string_view name;
  std::string_view description;
  Reach reach;
  LinkCost cost;            // as the cost functions of algorithms count with it
  std::string_view memory;  // mapped transports: the memory kind (memory/memory.h) that segments are made of
  // Mapped transports: a link over the fifos of a domain.
  std::unique_ptr<Link> (*over_domain)(const Domain& domain, int peer);
  // Mapped transports: a link over the mail fifos of a domain, for messages that are no part of a collective.
  std::unique_ptr<Link> (*mail_over_domain)(const Domain& domain, int peer);
  // The others: makes the endpoint of this rank, and returns the link. The start of the job has connected the ranks by
  // a stream socket, authenticated and, where the job wants it, encrypted. The link takes it over: to carry the data,
  // or to tell the peer where an endpoint of another kind is. Does not wait for the peer, which may come here much
  // later.
  std::unique_ptr<Link> (*connect)(int socket, int peer);
};

struct RegisterTransport {
  explicit RegisterTransport(const Transport& transport);
};

// By reach, then by latency, bandwidth and name: the same order in every process of one build.
const std::list<Transport>& transports();

// The transport for ranks that are so far apart: the one of that name if it is for these, else the first.
const Transport& find_transport(Reach reach, std::string_view name = {});

}  // namespace collectives
