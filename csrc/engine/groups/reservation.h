// How a rank takes part in the making of a group.
//
// The ranks of the parent agree on a number for the new communicator: the highest of those that they propose. Then each
// makes a reservation: it claims the number, and takes memory for its segment. They exchange whether that went
// well. When all have claimed the number, each member makes its communicator, and can use it at once; else all begin
// again. In a group that its members make alone (meeting.h) the first one gives the number, which all can claim.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/communicator.h"
#include "engine/groups/reserved_segment.h"

namespace collectives {

class Reservation {
 public:
  // members: the ranks in `parent` of the new group in the order of their new ranks, this rank among them; or none, for
  // a rank that is in no group.
  Reservation(const Communicator& parent, std::uint32_t number, const std::vector<int>& members);
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  // False when another group has the number on this rank.
  bool claimed() const { return claimed_; }
  const ReservedSegment& reserved() const { return reserved_; }

  // All ranks know that the group will not be made.
  void cancel();

  // The communicator of this rank. segments: of all members. To be called once.
  std::unique_ptr<Communicator> make(const std::vector<ReservedSegment>& segments);

 private:
  bool on_this_host(int member) const { return options_.topology.mapped(member, options_.topology.rank); }
  SegmentLayout layout(bool heap) const;

  std::shared_ptr<Engine> engine_;
  CommunicatorOptions options_;  // of the group
  bool mapped_ = false;          // another member shares memory with this rank
  bool all_mapped_ = false;      // all do
  bool claimed_ = false;
  ReservedSegment reserved_;
  std::shared_ptr<GroupSegment> segment_;
};

}  // namespace collectives
