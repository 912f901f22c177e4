// Waiting where ranks outnumber cores: which of them gets the core.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/executor/flag_words.h"
#include "engine/executor/progress.h"
#include "engine/work.h"
#include "memory/host_memory.h"

namespace collectives {

class Turns {
 public:
  // host: knows which rank of the world runs on which core; nullptr where ranks take no turns. members[r]: the rank of
  // the world that rank r is, empty where they are the same.
  Turns(HostMemory* host, std::vector<int> members) : host_(host), members_(std::move(members)) {}

  bool are_taken() const { return host_ != nullptr; }
  void publish_core() const { host_->publish_core(); }

  // Goes on waiting for the step's flags from number next_wait on, after a look at that one was in vain.
  Look await(FlagWords& flags, const Work& work, const Step& step, std::uint32_t next_wait, int spins) const;

 private:
  HostMemory* host_;
  std::vector<int> members_;
};

}  // namespace collectives
