// Steps that exchange messages over links: posting them, and waiting until they have left or come.
#pragma once

#include <vector>

#include "engine/executor/progress.h"
#include "engine/executor/signature_check.h"
#include "engine/executor/stream_pool.h"
#include "engine/work.h"

namespace collectives {

class LinkSteps {
 public:
  // check: keeps the rank whose signature differs.
  LinkSteps(StreamPool& pool, SignatureCheck& check) : pool_(pool), check_(check) {}

  // Sends and receives of a step, on streams that the work has.
  static void post(Work& work, const Step& step);
  // Drives the links until no receive (or, with `sends`, no send) is outstanding, or `spins` more looks were in vain.
  Look await(Work& work, bool sends, int spins);

  // Adds the ranks whose messages the work still waits for.
  static void add_missing(const Work& work, std::vector<int>& ranks);
  // Compares the signatures that have come over links; true when one differs. Also asks ranks with which the schedule
  // exchanges nothing: a rank that disagrees may send to this one. mapped_peers: ranks with which this one shares
  // memory, whose signatures come in header lines.
  bool find_mismatch(Work& work, const std::vector<int>& mapped_peers);

 private:
  Look settle(Work& work, bool sends);

  StreamPool& pool_;
  SignatureCheck& check_;
};

}  // namespace collectives
