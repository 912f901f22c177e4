// Runs schedules on the CPU, over mapped memory and links.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/executor/reading.h"
#include "engine/work.h"
#include "memory/domain.h"
#include "memory/host_memory.h"
#include "recorder/recorder.h"
#include "transports/transport.h"

namespace collectives {

enum class Progress : std::uint8_t { kDone, kBlocked, kMismatch };

class Executor {
 public:
  // domain: nullptr where no rank is mapped. links[r]: the link to rank r, nullptr for itself. turns: where ranks
  // outnumber cores and some are mapped, what is known of who runs where; else nullptr. members[r]: the rank of the
  // world that rank r is, empty where they are the same. readable[r]: how the memory of rank r is read.
  Executor(std::uint32_t communicator, int rank, const Domain* domain, std::vector<Link*> links, Recorder& recorder,
           HostMemory* turns, std::vector<int> members, std::vector<Reading::Source> readable);

  // What does not change when the work runs the same plan again on other memory.
  void bind(Work& work) const;
  // Takes the work to its first step. One that has not been recorded yet is, by run() at the latest.
  void begin(Work& work) {
    const Plan& plan = *work.plan;
    work.step = 0;
    work.next_wait = 0;
    work.iteration = 0;
    work.iterations = 0;
    work.base_of(Region::kInline) = place_of_header(work.sequence);
    find_places(work);
    if (turns_ != nullptr) [[unlikely]] {
      turns_->publish_core();
    }
    if (!plan.begins_at_once) [[unlikely]] {
      make_ready(work);
    }
  }
  // Runs until the work is done, or until something that it waits for has not come after `spins` looks at it, or, where
  // ranks take turns, after as many as make sense. Can be called again to go on.
  Progress run(Work& work, int spins);
  // Releases what begin() or run() took; for works that are done and for works that failed.
  void end(Work& work) {
    if (!work.streams.empty() || !work.scratch.empty()) [[unlikely]] {
      release(work);
    }
  }

  // The ranks that a blocked work waits for.
  std::vector<int> missing(const Work& work) const;

  // After kMismatch: the rank whose signature differs, and its signature.
  int mismatched_rank() const { return mismatched_rank_; }
  const Signature& mismatched_signature() const { return mismatched_signature_; }
  // Compares the header lines of all mapped ranks and the signatures that links have brought; true when one differs.
  // For works that have been blocked for a while: ranks that disagree may be waiting for different things.
  bool find_mismatch(Work& work);

  // See Reading: a work may be blocked by that.
  const Reading::Refusal& refusal() const { return reading_.refusal(); }

  // The other ranks of the domain.
  const std::vector<int>& mapped_peers() const { return mapped_peers_; }
  // The highest number of completed collectives that rank r is known to have reached.
  std::vector<std::uint64_t>& peers_completed() { return peers_completed_; }
  // Bytes that works which are over have sent to rank r over a link that serves several communicators.
  std::int64_t sent(int r) const { return sent_[r]; }
  std::uint64_t completed = 0;  // of this rank: all collectives numbered below are complete

 private:
  enum class Look : std::uint8_t { kNotYet, kThere, kDiffers };
  static Progress stopped(Look seen) { return seen == Look::kDiffers ? Progress::kMismatch : Progress::kBlocked; }
  // Whether this call has followed the last one so fast that both were between cores that share a cache.
  bool follows_fast() const { return recorder_.interval() < brisk_; }
  bool owns_lines(const Plan& plan) const {
    return plan.owning == Owning::kEverywhere || (plan.owning == Owning::kFar && !follows_fast());
  }
  void wait_before_look(const Work& work) const;
  void own_next_lines(const Work& work) const;
  // first: no other of the step was awaited before.
  Look await(const Work& work, const FlagPlace& flag, bool first, int spins);
  Look await_in_turn(const Work& work, const Step& step, std::uint32_t next_wait, int spins);
  Look look_header(const Work& work, int member);
  Look compare_header(const Work& work, int member, const HeaderLine& line, std::uint64_t word);
  bool differs(int rank, const Signature& theirs, const Work& work);
  // At the start, and when the iteration has changed.
  static void find_places(Work& work) {
    work.places = work.plan->places.row(work.base + static_cast<std::uint64_t>(work.iteration));
  }
  void make_ready(Work& work);
  // So that giving back what a work held never fails.
  void reserve_spares();
  void take_memory(Work& work);
  void take_scratch(Work& work);
  void signal(Work& work, const FlagPlace& flag);
  void signal_header(const Work& work, HeaderLine& line);
  void wake_peers();
  Stream& add_stream(Work& work, int peer);
  void open_stream(Work& work, int peer) { links_[peer]->open(add_stream(work, peer)); }
  int swap(Work& work, int spins);
  void release(Work& work);
  // Steps that touch data. Buffers of one span: a copy; where the operands of a reduction are, and the reduction.
  static void copy(Work& work, const Step& step);
  static void locate(Work& work, const Step& step);
  static void reduce(Work& work, const Step& step);
  static void move_spans(Work& work, const Step& step);
  void post(Work& work, const Step& step);
  // Where ranks may read each other: what this one tells the others, what all choose then, and a read.
  void offer(const Work& work);
  void choose(Work& work, const Step& step) const;
  Look read(const Work& work, const Step& step);
  static SpanCursor cursor(Work& work, const OperandPlace& place, std::int64_t bytes);
  Look settle(Work& work, bool sends);
  Look await_links(Work& work, bool sends, int spins);
  Look take_step(Work& work, const Step& step, int spins);

  std::uint32_t communicator_;
  int rank_;
  const Domain* domain_;
  Recorder& recorder_;
  std::vector<Link*> links_;
  std::vector<std::vector<std::byte>> spare_scratch_;   // of works that ended: fresh pages cost more than their use
  std::vector<std::unique_ptr<Stream>> spare_streams_;  // likewise
  std::vector<std::uint64_t> peers_completed_;
  std::vector<std::int64_t> sent_;
  int mismatched_rank_ = -1;
  Signature mismatched_signature_;
  std::vector<int> mapped_peers_;
  HostMemory* turns_;
  std::vector<int> members_;
  Reading reading_;
  int looks_ = 0;        // at the header that was awaited last
  std::uint64_t brisk_;  // see follows_fast(); counts of the recorder
};

}  // namespace collectives
