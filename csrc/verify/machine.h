// The abstract machine of the verifier: all ranks, their memory, flags and links, and the engine's guards between
// calls.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "core/topology.h"
#include "schedule/algorithm.h"
#include "schedule/schedule.h"
#include "verify/shadow.h"
#include "verify/values.h"
#include "verify/verifier.h"

namespace collectives::verification {

class Machine {
 public:
  // reads: how every rank chooses, where schedules leave it open.
  Machine(const std::vector<Schedule>& schedules, const Problem& problem, const Topology& topology,
          const VerifyOptions& options, bool reads, Verdict& verdict);

  // Runs everything; throws Violation with the place in the text.
  void run();

 private:
  struct Place {
    Shadow* memory = nullptr;
    std::int64_t offset = 0;
  };
  static bool overlap(std::int64_t a, std::int64_t b, std::int64_t bytes) { return a < b + bytes && b < a + bytes; }
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
  struct Signal {
    std::int64_t value = 0;
    Clock clock;
  };
  struct Rank {
    Clock clock;
    int call = 0;
    std::int64_t base = 0;
    bool inside = false;
    std::size_t step = 0;
    std::size_t end = 0;   // the step behind the last
    std::size_t loop = 0;  // the kLoop step, when iterations > 0
    std::int64_t iteration = 0;
    std::vector<std::pair<int, std::size_t>> receives;  // peer and index, posted and not awaited
    std::vector<std::pair<int, std::size_t>> sends;     // peer and index, posted and not flushed
    Shadow user[2];                                     // input, output
    Shadow scratch;
  };

  // machine.cc: calls, flags and progress.
  bool advance(int r);
  bool start(int r);
  bool finish(int r);
  void define_user_memory(int r);
  // Where input and output begin in the memory of a call in place: in collectives of parts the shorter one is the part
  // of the rank inside the longer one.
  std::int64_t in_place_offset(int r, int which) const;
  std::int64_t user_bytes(int r, int which) const {
    return which == 0 ? problem_.input_bytes(r, n_) : problem_.output_bytes(r, n_);
  }
  bool has_output(int r) const { return problem_.collective != Collective::kReduce || r == problem_.root; }
  bool flags_set(int r, const Step& step);
  void signal(int r, const Step& step);
  void release(int r) { ++ranks_[static_cast<std::size_t>(r)].clock[static_cast<std::size_t>(r)]; }
  std::vector<Signal>& word(int writer, int flag, std::int64_t chunk);

  // machine_checks.cc: what must hold at the end.
  void check_outputs(int call);
  void check_piece(int r, const Piece& piece, const std::string& where, bool* canonical);
  void check_drained() const;
  std::string stuck() const;

  // machine_messages.cc: sends and receives, which go on in the background.
  Stream& stream(int call, int from, int to);
  const Stream& stream(int call, int from, int to) const;
  bool ready(int r, const Step& step) const;
  bool sends_met(int r) const;
  int begin_background(int r, int receiver);
  void send(int r, const Step& step);
  void receive(int r, const Step& step);
  void meet(const Stream& messages, std::size_t index);
  void await(int r);
  void flush(int r);

  // machine_steps.cc: the effect of steps on memory.
  void execute(int r, const Step& step);
  void copy(int r, const Step& step);
  void reduce(int r, const Step& step);
  Place place(int r, const Operand& operand);
  Place target(int r, const Operand& operand);
  Data load(int r, const Operand& operand, std::int64_t bytes, int background, bool count);
  Data combine(const std::vector<Data>& sources, bool finish);
  Actor actor(int r) const;
  void count_step(int r, StepKind kind);

  const std::vector<Schedule>& schedules_;
  Problem problem_;
  const Topology& topology_;
  const VerifyOptions& options_;
  bool reads_;
  Verdict& verdict_;
  int n_;
  Values values_;
  std::vector<Rank> ranks_;
  std::vector<Shadow> boxes_;    // rank * slots + slot
  std::vector<Shadow> inlines_;  // rank * kHeaderLines + call % kHeaderLines
  std::vector<Background> backgrounds_;
  std::vector<std::vector<Signal>> words_;   // (writer * kFlags + flag) * slots + slot; all its values, oldest first
  std::vector<std::vector<Clock>> headers_;  // [call][writer], empty until signalled
  std::vector<std::vector<std::uint32_t>> started_;  // [call][rank], the own clock, 0 until then
  std::vector<std::vector<Clock>> completed_;        // [call][rank], empty until then
  std::vector<std::vector<Stream>> streams_;         // [call][from * n + to]
  std::vector<std::vector<Data>> outputs_;           // [call][rank], what the user read
  std::vector<std::int64_t> ignored_;                // where bytes of later calls are counted
};

}  // namespace collectives::verification
