// Point-to-point messages of a communicator: send and recv.
//
// They are works beside the collectives: they take no part in the order of those, and wait for nothing but each other.
// A message is a stream of its own on a link, named by its direction, its tag and its number among the messages of that
// tag, so the k-th send of a tag meets the k-th receive, whatever else is under way.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "core/domain.h"
#include "core/transport.h"
#include "runtime/executor.h"
#include "runtime/work.h"

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
  // How a work stands. kMismatch: work.streams[0] has the peer's signature.
  static Progress look(const Work& work);
  // Takes a work off its link; for works that are done and for works that failed.
  void end(Work& work);

  const std::vector<std::shared_ptr<Work>>& active() const { return active_; }
  // Payload bytes of messages to a member that are over.
  std::int64_t sent(int member) const { return sent_[member]; }

 private:
  StreamKey next_key(const Message& message);

  std::uint32_t communicator_;
  int rank_;
  std::vector<Link*> links_;
  std::map<std::tuple<int, int, bool>, std::uint64_t> counts_;  // by peer, tag and direction
  std::vector<std::shared_ptr<Work>> active_;
  std::vector<std::int64_t> sent_;
};

}  // namespace collectives
