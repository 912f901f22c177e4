// Proves a set of schedules right by running them over symbolic values with vector clocks.
//
// What is proven, for the given problem and placement: every rank ends with every contribution exactly once, combined
// in the same order on every rank (in a prefix: with those of the ranks up to its own, in an order of its own); no rank
// reads what was not written in this collective; inputs are only written in place; every read and every overwrite is
// ordered by a signal or a message after the accesses it conflicts with, including those of the user's program before
// and after the call; nothing deadlocks although a send completes only when the matching receive has been posted; slots
// are reused safely from collective to collective; and no rank completes before every rank has started, without which a
// mismatch could not be an error on every rank.
//
// That it then is one follows: the start of each rank lies before the end of each other by a chain of signals and
// messages; a rank compares the signature of every rank that it awaits (the header comes before all other flags, and
// leads the first message); and a rank that sees a difference signals and sends nothing more. So along the chain all
// have the signature of a rank that completes.
//
// A transport may buffer: the end of a send says nothing about the receiver. A receive may write at any
// time from the posts of both sides until the await. A copy onto itself, as in place, touches nothing. The guard
// between collectives is the engine's: a slot is used first when every mapped rank has completed the collectives that
// had it before, a header line likewise.
//
// One run decides for all interleavings. A rank runs its steps in order and can only be held up by conditions that stay
// true once they are (a flag that is large enough, a message that is posted, a collective that is completed); messages
// match by their order. So which signal releases a wait (the first in its writer's order that is large enough) and
// which send meets a receive does not depend on timing, every interleaving executes the same steps with the same
// happens-before relation, and it deadlocks in all interleavings or in none. Two accesses that conflict are either
// ordered by that relation, and then happen in this order always, or not, and then they are reported as a race here.
// Without races the values are the same in all interleavings too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/topology.h"
#include "schedule/algorithm.h"
#include "schedule/schedule.h"

namespace collectives {

struct VerifyOptions {
  int repeats = 2;        // how often the collective runs, back to back
  bool in_place = false;  // input and output are the same memory
  Limits limits;
};

struct Verdict {
  bool ok = false;
  std::string problem;  // the first violation, with rank, call, step and its text
  // For one collective. link_bytes[w][r]: bytes of messages from w to r, plus bytes that r (or the user's program
  // there) read where w had written last.
  std::vector<std::vector<std::int64_t>> link_bytes;
  // Per rank, loops unrolled.
  std::vector<std::int64_t> steps;  // sends, receives, copies and reductions
  std::vector<std::int64_t> sends;
  std::vector<std::int64_t> receives;
  std::vector<std::int64_t> reductions;  // reduce and receive_reduce
  // The largest number of links that a contribution crosses one after the other on its way into an output.
  int hops = 0;
  // All outputs combine along the canonical tree over rank numbers, or, in a prefix, from rank 0 upwards.
  bool canonical = false;
};

// schedules[r] is that of rank r; topology.rank is ignored.
Verdict verify(const std::vector<Schedule>& schedules, const Problem& problem, const Topology& topology,
               const VerifyOptions& options);

}  // namespace collectives
