// Runs the schedules of all ranks of a device collective: one thread puts their steps into one stream per rank.
//
// What orders ranks in a schedule becomes events, recorded in the stream of one rank and awaited in that of another.
// Where a step needs an event that has not been recorded yet, the thread goes on with another rank. The kinds of steps:
//
//   signal    records an event, kept by writer, flag and chunk
//   wait      the stream waits for that event
//   send      records an event; the message stays in the sender's memory
//   receive   once it is matched with its send, the receiver's stream waits for the event of the send and then copies,
//             or reduces, straight from the sender's memory
//   await     adds nothing to the stream, where the receives come earlier; the thread returns to this rank when all of
//             them are matched
//   flush     the stream waits for the streams of the ranks that receive from this one
//
// Every operation waits only for operations that were put into a stream before it, so devices cannot deadlock.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "device/collective.h"
#include "device/team.h"

namespace collectives {

class DeviceExecutor {
 public:
  // Of each rank. staging: for copies of what the kernels of its device cannot access.
  struct Memory {
    std::vector<std::vector<Span>> inputs, outputs;  // the caller's arrays
    std::vector<std::byte*> bounce, scratch, staging;
  };
  DeviceExecutor(const DeviceTeam& team, const DevicePlan& plan, const Problem& problem, const Memory& memory,
                 Events& events, CurrentDevice& current);

  // Puts all steps of all ranks into the streams.
  void run();

 private:
  // A point in the stream of a rank: an event, and its number in that stream.
  struct Point {
    void* event = nullptr;
    std::int64_t number = 0;
  };
  // Where the bytes of an operand lie, from the current position on: at `flat`, or where it is nullptr, at `cursor`.
  struct Place {
    int rank = 0;  // whose device
    std::byte* flat = nullptr;
    SpanCursor cursor;
    Span piece(std::int64_t limit) const { return flat != nullptr ? Span{flat, limit} : cursor.piece(limit); }
    void advance(std::int64_t bytes);
  };
  struct Signal {
    std::int64_t value = 0;
    Point point;
  };
  struct Send {
    Point point;
    Place source;
    std::int64_t bytes = 0;
  };
  struct Receive {
    const Step* step = nullptr;
    Place destination;
    Place source;  // of a reduction
  };
  struct Stream {  // of messages from one rank to another
    std::deque<Send> sends;
    std::deque<Receive> receives;
  };
  struct Rank {
    std::size_t step = 0;
    std::size_t loop_begin = 0;
    std::int64_t iteration = 0;
    std::int64_t iterations = 0;
    Point latest;
    bool moved = true;                  // whether the stream has got work since `latest`
    std::vector<std::int64_t> awaited;  // of each other rank: the number of the last point that the stream waits for
    std::vector<bool> sent;             // to each other rank, since the last flush
    int unmatched_receives = 0;
    int unmatched_sends = 0;
  };

  bool advance(int r);
  bool ready(int r, const Step& step) const;
  const Point* find(int r, const FlagRef& flag) const;
  Point record_point(int r);
  void await(int r, int writer, const Point& point);
  void signal(int r, const Step& step);
  void post(int r, const Step& step);
  void match(int from, int to);
  void flush(int r);
  Place place(int r, const Operand& operand) const;
  void move(int r, const Step& step);
  void copy(int r, std::byte* destination, const std::byte* source, std::int64_t bytes);
  void move_all(int r, bool reduces, std::int64_t bytes, bool finish);
  void reduce(int r, std::int64_t bytes, bool finish);
  std::size_t word(const FlagRef& flag, std::int64_t chunk) const;

  const DeviceTeam& team_;
  const DevicePlan& plan_;
  const Problem& problem_;
  const Memory& memory_;
  const DeviceApi& api_;
  Events& events_;
  CurrentDevice& current_;
  const int n_;
  std::vector<Rank> ranks_;
  std::vector<Point> headers_;
  std::vector<std::vector<Signal>> words_;  // by writer, flag and slot
  std::vector<Stream> streams_;             // [from * n + to]
  std::vector<Place> sources_;
  std::vector<Place> destinations_;
  DeviceReduction reduction_;
};

}  // namespace collectives
