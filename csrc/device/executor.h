// Runs the schedules of all ranks of a device collective: puts their steps into one stream per rank.
//
// What orders the ranks of a schedule becomes events, which are recorded in the stream of one rank and awaited in that
// of another, and the thread that puts the steps there goes from rank to rank:
//
//   signal    an event at this place of the rank's stream, by writer, flag and chunk
//   wait      the stream waits for the event; where it has not been recorded, the thread goes on with another rank
//   send      an event; the message is where the sender has it
//   receive   as soon as send and receive both are posted: the receiver's stream waits for the event and copies, or
//             reduces from where the message is
//   await     nothing: what was received is earlier in the same stream. The thread goes on with another rank until all
//             receives have met their sends
//   flush     the stream waits for the streams of those who received
//
// Every operation waits only for operations that were put into a stream before it, so devices cannot deadlock.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "device/collective.h"
#include "device/gang.h"

namespace collectives {

class DeviceExecutor {
 public:
  // inputs, outputs: the caller's arrays of each rank. boxes, scratch, staging: memory of each rank.
  struct Memory {
    std::vector<std::vector<Span>> inputs, outputs;
    std::vector<std::byte*> boxes, scratch, staging;
  };
  DeviceExecutor(const Gang& gang, const DevicePlan& plan, const Problem& problem, const Memory& memory, Events& events,
                 CurrentDevice& current);

  // Puts everything into the streams.
  void run();

 private:
  // A place in the stream of a rank: the event, and how many came before it there.
  struct Mark {
    void* event = nullptr;
    std::int64_t number = 0;
  };
  // Where the bytes of an operand are, from the current position on.
  struct Place {
    int rank = 0;  // whose device
    std::byte* flat = nullptr;
    SpanCursor cursor;  // where there is no `flat`
    Span piece(std::int64_t limit) const { return flat != nullptr ? Span{flat, limit} : cursor.piece(limit); }
    void advance(std::int64_t bytes);
  };
  struct Signal {
    std::int64_t value = 0;
    Mark mark;
  };
  struct Send {
    Mark mark;
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
    Mark latest;
    bool moved = true;                  // since `latest`
    std::vector<std::int64_t> awaited;  // of each rank: the highest number of a mark that the stream has waited for
    std::vector<bool> sent;             // to each rank: since the last flush
    int unmet_receives = 0;
    int unmet_sends = 0;
  };

  bool advance(int r);
  bool ready(int r, const Step& step) const;
  const Mark* find(int r, const FlagRef& flag) const;
  Mark mark_now(int r);
  void await(int r, int writer, const Mark& mark);
  void signal(int r, const Step& step);
  void post(int r, const Step& step);
  void meet(int from, int to);
  void flush(int r);
  Place place(int r, const Operand& operand) const;
  void move(int r, const Step& step);
  void copy(int r, std::byte* destination, const std::byte* source, std::int64_t bytes);
  void move_all(int r, bool reduces, std::int64_t bytes, bool finish);
  void reduce(int r, std::int64_t bytes, bool finish);
  std::size_t word(const FlagRef& flag, std::int64_t chunk) const;

  const Gang& gang_;
  const DevicePlan& plan_;
  const Problem& problem_;
  const Memory& memory_;
  const DeviceApi& api_;
  Events& events_;
  CurrentDevice& current_;
  const int n_;
  std::vector<Rank> ranks_;
  std::vector<Mark> headers_;
  std::vector<std::vector<Signal>> words_;  // by writer, flag and slot
  std::vector<Stream> streams_;             // [from * n + to]
  std::vector<Place> sources_;
  std::vector<Place> destinations_;
  DeviceReduction reduction_;
};

}  // namespace collectives
