// Sends and receives, which go on in the background.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "schedule/schedule.h"
#include "verify/regions.h"
#include "verify/world.h"

namespace collectives::verification {

class Messages {
 public:
  Messages(World& world, Regions& regions);

  // Whether all messages have been sent that the rank's posted receives wait for.
  bool receives_met(int r) const;
  // Whether receives have been posted for all messages that the rank has sent.
  bool sends_met(int r) const;
  void send(int r, const Step& step);
  void receive(int r, const Step& step);
  void await(int r);
  void flush(int r);
  // Throws Violation when a message was not received, or a receive got none.
  void check_drained() const;

 private:
  struct Message {
    std::int64_t bytes = 0;
    Data data;
    Clock clock;  // of the sender when it posted
    int background = -1;
  };
  struct Receive {
    std::int64_t bytes = 0;
    Place destination;
    bool reduces = false;
    bool finish = false;
    bool own_first = false;
    Data source;   // of receive_reduce
    Actor poster;  // its clock is the one below
    Clock clock;   // of the receiver when it posted
    int background = -1;
  };
  // The messages of one call from one rank to another. The i-th send meets the i-th receive.
  struct Stream {
    std::vector<Message> sends;
    std::deque<Receive> receives;  // a deque, since `poster` points into its elements
  };
  Stream& stream(int call, int from, int to) {
    return streams_[static_cast<std::size_t>(call)][static_cast<std::size_t>(from * world_.n + to)];
  }
  const Stream& stream(int call, int from, int to) const {
    return streams_[static_cast<std::size_t>(call)][static_cast<std::size_t>(from * world_.n + to)];
  }
  void meet(const Stream& messages, std::size_t index);

  World& world_;
  Regions& regions_;
  std::vector<std::vector<Stream>> streams_;  // [call][from * n + to]
};

}  // namespace collectives::verification
