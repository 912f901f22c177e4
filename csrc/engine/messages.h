// Point-to-point messages of a communicator: send and recv.
//
// They are works beside the collectives: they take no part in the order of those, and wait for nothing but each other.
// A message is a stream of its own on a link, named by its direction, its tag and its number among the messages of that
// tag, so the k-th send of a tag meets the k-th receive, whatever else is under way.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "engine/executor/executor.h"
#include "engine/work.h"
#include "memory/domain.h"
#include "transports/transport.h"

namespace collectives {

inline constexpr int kMaxTag = (1 << 24) - 1;

class Messages {
 public:
  // links[r]: the link for messages to member r, nullptr for the rank itself.
  Messages(std::uint32_t communicator, int rank, std::vector<Link*> links);

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

  // In the order in which they were started.
  const std::list<std::shared_ptr<Work>>& active() const { return active_; }
  // Whether any is to or from a member.
  bool concern(int member) const { return with_[member] > 0; }
  // Payload bytes of messages to a member that are over.
  std::int64_t sent(int member) const { return sent_[member]; }

 private:
  StreamKey next_key(const Message& message);

  std::uint32_t communicator_;
  int rank_;
  std::vector<Link*> links_;
  std::map<std::tuple<int, int, bool>, std::uint64_t> counts_;  // by peer, tag and direction
  std::list<std::shared_ptr<Work>> active_;
  std::vector<std::size_t> with_;  // how many of these are to or from a member
  IntrusiveList<Stream> changed_;
  std::vector<std::int64_t> sent_;
};

}  // namespace collectives
