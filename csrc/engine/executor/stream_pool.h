// What works hold while they run and give back when they end: streams and scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/work.h"
#include "transports/transport.h"

namespace collectives {

class StreamPool {
 public:
  // communicator: its number. links[r]: the link to rank r, nullptr for itself.
  StreamPool(std::uint32_t communicator, std::vector<Link*> links);

  // All that the plan of the work needs.
  void acquire(Work& work);
  void acquire_scratch(Work& work);
  // A stream to that rank: registered with its link, or, for links that register it another way, not yet.
  void open_stream(Work& work, int peer) { links_[peer]->open(add_stream(work, peer)); }
  Stream& add_stream(Work& work, int peer);
  // Takes back whatever the work holds. Never fails.
  void release(Work& work);

  const std::vector<Link*>& links() const { return links_; }
  std::uint32_t communicator() const { return communicator_; }
  // Bytes that works which are over have sent to rank r over a link that serves several communicators.
  std::int64_t sent(int r) const { return sent_[r]; }
  void add_sent(int r, std::int64_t bytes) { sent_[r] += bytes; }

 private:
  std::uint32_t communicator_;
  std::vector<Link*> links_;
  std::vector<std::int64_t> sent_;
  // Of works that ended: fresh pages, and fresh lists, cost more than their use.
  std::vector<std::vector<std::byte>> spare_scratch_;
  std::vector<std::unique_ptr<Stream>> spare_streams_;
};

}  // namespace collectives
