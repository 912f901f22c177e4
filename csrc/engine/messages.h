// Point-to-point messages of a communicator: send and recv.
//
// They are works beside the collectives: they take no part in the order of those, and wait for nothing but each other.
// A message is a stream of its own on a link, named by its direction, its tag and its number among the messages of that
// tag, so the k-th send of a tag meets the k-th receive, whatever else is under way. A receive from any rank gets its
// rank and its number when a message of the tag is there that no receive before it takes.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "engine/executor/executor.h"
#include "engine/own_link.h"
#include "engine/unmatched_receives.h"
#include "engine/work.h"
#include "memory/domain.h"
#include "recorder/recorder.h"
#include "transports/transport.h"

namespace collectives {

inline constexpr int kMaxTag = (1 << 24) - 1;

// A message that has come and that no receive has taken.
struct Incoming {
  int source = -1;
  Signature signature;  // the sender's
};

class Messages {
 public:
  // links[r]: the link for messages to member r, nullptr for the rank itself.
  Messages(std::uint32_t communicator, int rank, std::vector<Link*> links, Recorder& recorder);
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // Takes the work, whose spans and signature are set, to its link.
  void start(const std::shared_ptr<Work>& work);
  // Moves what can be moved without blocking, and empties the fifos of what others have sent.
  bool progress();
  // A work of which something has changed that may end it; nullptr: there is none any more.
  std::shared_ptr<Work> next_changed();
  // How a work stands. kMismatch: work.streams[0] has the peer's signature.
  static Progress look(const Work& work);
  // Takes a work off its link; for works that are done and for works that failed.
  void end(Work& work);

  // Whether the next message that this rank sends to itself with the tag meets a receive that is posted.
  bool awaits_own(int tag);
  // The first message with the tag, from that rank or from any, that has come and that no receive takes.
  std::optional<Incoming> find(int source, int tag);
  // While it exists, progress() reads all links, as it does while a receive from any rank waits.
  class Probing {
   public:
    explicit Probing(Messages& messages) : messages_(messages) { ++messages_.probes_; }
    ~Probing() { --messages_.probes_; }
    Probing(const Probing&) = delete;
    Probing& operator=(const Probing&) = delete;

   private:
    Messages& messages_;
  };

  // In the order in which they were started.
  const std::list<std::shared_ptr<Work>>& active() const { return active_; }
  // Whether any is to or from a member.
  bool concern(int member) const { return with_[member] > 0; }
  // Whether a receive from any rank has no message yet.
  bool await_any() const { return unmatched_.any(); }
  // Payload bytes of messages to a member that are over.
  std::int64_t sent(int member) const { return sent_[member]; }

 private:
  std::uint64_t count(const Message& message) const;
  StreamKey key_of(const Message& message, std::uint64_t number) const;
  // The name of the message that the next receive from the rank with the tag gets.
  StreamKey next_received(int source, int tag) const {
    const Message message{source, tag, false};
    return key_of(message, count(message));
  }
  void open(Work& work);
  void wait_for_turn(Work& work);
  void listen(bool on);
  void take(Work& work, int source);
  void open_freed();
  bool match(int source);
  bool match_all();

  std::uint32_t communicator_;
  int rank_;
  OwnLink own_;
  std::vector<Link*> links_;
  Recorder& recorder_;
  std::map<std::tuple<int, int, bool>, std::uint64_t> counts_;  // by peer, tag and direction
  std::list<std::shared_ptr<Work>> active_;
  std::vector<std::size_t> with_;  // how many of these are to or from a member
  IntrusiveList<Stream> changed_;
  std::vector<std::int64_t> sent_;
  UnmatchedReceives unmatched_;
  std::vector<std::vector<StreamKey>> begun_;  // by member: messages that have begun while unmatched_.any()
  int probes_ = 0;
};

}  // namespace collectives
