// A failure report: what one rank publishes for the others when a communicator fails.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"

namespace collectives {

// What happened, for what is said about it: see explain.h.
// kUnreachable: it may live.
enum class Cause : std::uint8_t { kOther, kDeath, kUnreachable, kSilence, kLeft, kMismatch };

struct Report {
  ErrorKind kind = ErrorKind::kGeneric;  // kNone: no failure, the reporter has left in good order
  std::uint32_t communicator = 0;
  int reporter = -1;     // ranks are those of the communicator
  int origin = -1;       // the rank that found the failure; the reporter may only have received its report
  int suspect = -1;      // the rank that the failure is about
  int other = -1;        // a mismatch: the rank that it disagrees with
  bool message = false;  // a mismatch: about a message, not about a collective
  std::int64_t sequence = -1;
  std::vector<int> waits;  // a deadline: the ranks that the reporter waits for itself
  std::string text;        // the message for people
  std::string name;        // a mismatch: the reporter's name for the call, and the lengths of its tensors
  std::vector<std::int64_t> counts;
  std::vector<std::int64_t> shapes;  // Shapes::values()
  std::vector<std::string> names;    // where ranks must agree about them, as many as have room
  Cause cause = Cause::kOther;
  // What the reporter knows besides.
  bool waiting = false;     // it had calls pending
  int seen = -1;            // 1: the suspect had entered the collective, 0: it had not, as far as the reporter can see
  std::int64_t posted = 0;  // how many collectives it had entered
  std::string recent;       // its last calls before the one that failed
  std::string found;        // where the suspect is; sent a moment later

  // Text of at most `limit` bytes; what does not fit is left out from the end of the counts and shapes.
  std::string encode(std::size_t limit) const;
  // Of any bytes; check the result, since a peer may have sent anything.
  static Report decode(const std::string& text);
  // False for what no rank writes. readable() knows no more than the bytes; valid() is for a group of `size` ranks.
  bool readable() const { return kind != ErrorKind::kGeneric && kind <= ErrorKind::kBackend; }
  bool valid(int size) const;
};

}  // namespace collectives
