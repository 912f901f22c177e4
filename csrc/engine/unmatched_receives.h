// Receives that wait to learn which message is theirs: those from any rank, and those of the same tag behind them.
//
// A receive from a given rank meets the message of its own number among those that this rank sends with the tag. One
// from any rank takes the number of a message that is there. Until then those posted behind it have to wait for
// theirs, too: the message that it takes may be one from the rank that they name. So messages of one tag are given to
// the receives in the order in which these were posted, as MPI does it.
#pragma once

#include <cstddef>
#include <map>

#include "core/intrusive_list.h"
#include "engine/work.h"

namespace collectives {

class UnmatchedReceives {
 public:
  UnmatchedReceives() = default;
  UnmatchedReceives(const UnmatchedReceives&) = delete;
  UnmatchedReceives& operator=(const UnmatchedReceives&) = delete;

  bool empty() const { return queues_.empty(); }
  // Whether any is from any rank.
  bool any() const { return from_any_ > 0; }
  // Whether some of the tag wait: the first of them is from any rank, unless next_free() has something to return.
  bool has(int tag) const { return first(tag) != nullptr; }
  // The first of the tag; nullptr: there is none.
  Work* first(int tag) const;
  void add(Work& work);
  // Without effect for a work that is not there.
  void remove(Work& work) noexcept;
  // One from a given rank that has no other before it and can have its number now; nullptr: there is none.
  Work* next_free();

 private:
  struct Queue : ListNode<Queue> {
    int tag = 0;
    IntrusiveList<Work, Unmatched> works;
  };

  std::map<int, Queue> queues_;  // by tag
  IntrusiveList<Queue> freed_;   // the first of them has changed
  std::size_t from_any_ = 0;
};

}  // namespace collectives
