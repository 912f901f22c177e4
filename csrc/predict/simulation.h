// The schedules of all ranks, run in virtual time over a model of the machines and the network.
//
// A schedule is data, so the time that it takes needs no formula of its own: the simulation lets every rank do its
// steps one after the other. It models what decides between hosts:
//
//  * the port of each host, one in each direction, which the ranks of the host share. Messages pass through it in
//  pieces,
//    the streams of different pairs of ranks in turn;
//  * the cores of each machine, which its ranks share: what a thread does for a message, its bytes, a copy or a
//  reduction
//    takes the core that is free first;
//  * latency between hosts, and the time until a rank that waited goes on.
//
// It leaves out what hardly matters for the choice: windows of connections, credits, caches. Inside one host caches
// decide, so the simulation says nothing about a job of one host.
//
// Source: discrete-event simulation of collectives over a LogGP-like model, as in Hoefler, Schneider and Lumsdaine,
// "LogGOPSim: simulating large-scale applications in the LogGOPS model", 2010.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/network.h"
#include "core/topology.h"
#include "predict/cores.h"
#include "predict/fold.h"
#include "predict/machine.h"
#include "schedule/schedule.h"

namespace collectives {

// Where the time of the slowest rank goes.
struct Simulated {
  Picoseconds time = 0;
  Picoseconds wire = 0;       // that the busiest port of a host carries bytes
  Picoseconds processor = 0;  // that the slowest rank's thread works
  bool cut_off = false;       // it takes longer than was asked for; the times are those up to there
  bool ends = true;           // false: ranks wait for each other for ever, as no schedule that is proven does
};

class Simulation {
 public:
  // schedules: of all ranks, in order, or of those of the first host, which stands for all by the symmetry of `fold`.
  // All arguments outlive this.
  Simulation(const std::vector<Schedule>& schedules, const Topology& topology, const Network& network,
             const Fold& fold = {}, const ProcessorCosts& costs = {});

  // Runs until all ranks are at the end of their schedules, or it is later than `most`.
  Simulated run(Picoseconds most);

 private:
  struct Piece {
    std::int64_t bytes = 0;
    bool last = false;  // of its message
  };
  // All messages from one rank to another, which arrive in order.
  struct Stream {
    int from = 0;
    int to = 0;
    bool mapped = false;
    bool queued = false;        // for the port
    std::deque<Piece> pieces;   // that the rank has sent and the port has not
    std::int64_t arrived = 0;   // messages
    std::vector<bool> reduces;  // by message, as far as receives were posted: whether it is reduced as it comes
  };
  // A port of a host in one direction.
  struct Port {
    Picoseconds paid = 0;  // when all that it has let through has had its time on the wire
    Picoseconds busy = 0;
    std::deque<int> streams;  // that have pieces for it, in turn
    bool sending = false;
  };
  // kRank: the rank goes on. kSent: its thread is done with a piece. kPortFree: the port has sent one. kHead: the first
  // byte is at the port of the other host. kArrival: the last one is at the other rank.
  enum class What : std::uint8_t { kRank, kSent, kPortFree, kHead, kArrival };
  struct Event {
    Picoseconds at = 0;
    std::uint64_t order = 0;  // of those at one time
    What what = What::kRank;
    bool last = false;  // piece of a message
    int index = 0;      // of the rank, the host or the stream
    std::int64_t bytes = 0;
    bool operator>(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  struct Rank {
    const Schedule* schedule = nullptr;
    std::size_t next = 0;  // step
    std::size_t end = 0;
    std::size_t loop = 0;  // the step that begins it
    std::int64_t iteration = 0;
    std::int64_t sent = 0;     // bytes of the step that is being sent
    std::int64_t missing = 0;  // messages that were asked for and have not come
    bool working = false;      // at step `next`
    bool blocked = false;
    Picoseconds works = 0;
    std::vector<Event> inbox;  // pieces that are there
  };

  void at(Picoseconds when, What what, int index, std::int64_t bytes = 0, bool last = false);
  void go_on(int rank);
  bool begin(int rank, const Step& step);
  void leave(int rank, const Step& step);
  // The rank's thread does what takes so long on a core of its own, and goes on then. Returns when.
  Picoseconds work(int rank, Picoseconds time);
  // It has the core of its machine that is free first for so long.
  Picoseconds occupy(int rank, Picoseconds time);
  void resume(int rank, Picoseconds seen);
  void send_piece(int rank, const Step& step);
  void queue_piece(const Event& event);
  void send_from(int host);
  void arrive(const Event& event);
  void take_in(int rank);
  bool sees(const Rank& rank, const Step& step) const;
  int stream_of(int from, int to);
  static std::uint64_t key(const Rank& rank, const FlagRef& flag);
  // The port lets so many bytes through from now on. Returns when the last has passed.
  Picoseconds pass(Port& port, std::int64_t bytes) const;

  const Topology& topology_;
  const Fold fold_;
  const ProcessorCosts costs_;
  const Picoseconds latency_;
  const Picoseconds wire_byte_;
  const Picoseconds burst_;  // what a burst would take at the rate
  Picoseconds now_ = 0;
  std::uint64_t events_ = 0;
  int unfinished_ = 0;
  int slowest_ = -1;
  std::vector<Rank> ranks_;
  std::vector<Stream> streams_;
  std::unordered_map<std::uint64_t, int> stream_of_pair_;
  std::vector<Port> out_;  // by host
  std::vector<Port> in_;
  const Cores cores_;
  std::vector<std::vector<Picoseconds>> free_at_;  // by machine: when each core is
  std::unordered_set<std::uint64_t> flags_;        // that are set
  std::priority_queue<Event, std::vector<Event>, std::greater<>> to_come_;
};

}  // namespace collectives
