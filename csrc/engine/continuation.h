// How a call that the caller makes as one becomes several, each of which can be prepared only when the one before is
// over: a vector collective whose ranks first tell each other what they give.
#pragma once

#include <stdexcept>
#include <string>

namespace collectives {

struct Call;

class Continuation {
 public:
  virtual ~Continuation() = default;
  // Sets the call that follows the one that is over; true where another follows that. Its memory stays as long as this
  // object does. Called under the lock of the engine, by whichever thread finds the call before over. May throw
  // Disagreement; any other exception fails the communicator.
  virtual bool next(Call& call) = 0;
};

// Ranks disagree in what a Continuation compares. All ranks find the same, so each ends this call alone.
struct Disagreement : std::runtime_error {
  Disagreement(const std::string& text, int lower, int other)
      : std::runtime_error(text), lower_rank(lower), other_rank(other) {}
  int lower_rank;
  int other_rank;
};

}  // namespace collectives
