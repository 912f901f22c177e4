// Runs schedules on the CPU, over mapped memory and links: walks their steps. What each kind of step does is in the
// classes beside this one.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/executor/direct_reads.h"
#include "engine/executor/flag_words.h"
#include "engine/executor/link_steps.h"
#include "engine/executor/progress.h"
#include "engine/executor/reading.h"
#include "engine/executor/short_sendrecv.h"
#include "engine/executor/signature_check.h"
#include "engine/executor/stream_pool.h"
#include "engine/executor/turns.h"
#include "engine/work.h"
#include "memory/domain.h"
#include "memory/host_memory.h"
#include "recorder/recorder.h"
#include "transports/transport.h"

namespace collectives {

class Executor {
 public:
  // domain: nullptr where no rank is mapped. links[r]: the link to rank r, nullptr for itself. turns: where ranks
  // outnumber cores and some are mapped, what is known of who runs where; else nullptr. members[r]: the rank of the
  // world that rank r is, empty where they are the same. readable[r]: how the memory of rank r is read.
  Executor(std::uint32_t communicator, int rank, const Domain* domain, std::vector<Link*> links, Recorder& recorder,
           HostMemory* turns, std::vector<int> members, std::vector<Reading::Source> readable);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // What does not change when the work runs the same plan again on other memory.
  void bind(Work& work) const;
  // Takes the work to its first step. Records of the call are made by run() at the latest.
  void begin(Work& work) {
    const Plan& plan = *work.plan;
    work.step = 0;
    work.next_wait = 0;
    work.iteration = 0;
    work.iterations = 0;
    work.base_of(Region::kInline) = place_of_header(work.sequence);
    find_places(work);
    if (turns_.are_taken()) [[unlikely]] {
      turns_.publish_core();
    }
    if (!plan.begins_at_once) [[unlikely]] {
      make_ready(work);
    }
  }
  // Runs until the work is done, or until something that it waits for has not come after `spins` looks at it, or, where
  // ranks take turns, after as many as make sense. Can be called again to go on.
  Progress run(Work& work, int spins);
  // Releases what begin() or run() acquired; for works that are done and for works that failed.
  void end(Work& work) {
    if (!work.streams.empty() || !work.scratch.empty()) [[unlikely]] {
      pool_.release(work);
    }
  }

  // The ranks that a blocked work waits for: a failure report names them.
  std::vector<int> missing(const Work& work) const;

  // After kMismatch: the rank whose signature differs, and its signature.
  int mismatched_rank() const { return check_.rank(); }
  const Signature& mismatched_signature() const { return check_.signature(); }
  // Compares the header lines of all mapped ranks and the signatures that links have brought; true when one differs.
  // For works that have been blocked for a while: ranks that disagree may be waiting for different things.
  bool find_mismatch(Work& work) {
    return flags_.find_mismatch(work) || messages_.find_mismatch(work, flags_.mapped_peers());
  }

  // See Reading: a work may be blocked by that.
  const Reading::Refusal& refusal() const { return reads_.refusal(); }

  // The other ranks of the domain.
  const std::vector<int>& mapped_peers() const { return flags_.mapped_peers(); }
  // The highest number of completed collectives that rank r is known to have reached.
  std::vector<std::uint64_t>& peers_completed() { return flags_.peers_completed(); }
  // Bytes that works which are over have sent to rank r over a link that serves several communicators.
  std::int64_t sent(int r) const { return pool_.sent(r); }
  std::uint64_t completed = 0;  // of this rank: all collectives numbered below are complete

 private:
  // At the start, and when the iteration has changed.
  static void find_places(Work& work) {
    work.places = work.plan->places.row(work.base + static_cast<std::uint64_t>(work.iteration));
  }
  void make_ready(Work& work);
  Look run_step(Work& work, const Step& step, int spins);

  std::uint32_t communicator_;
  Recorder& recorder_;
  SignatureCheck check_;
  FlagWords flags_;
  Turns turns_;
  StreamPool pool_;
  LinkSteps messages_{pool_, check_};
  ShortSendRecv sendrecv_{pool_};
  DirectReads reads_;
};

}  // namespace collectives
