// The flags of all ranks: every value that each had, with what its writer knew then.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"
#include "verify/world.h"

namespace collectives::verification {

class Flags {
 public:
  explicit Flags(World& world);

  // Whether all flags that the step waits for are set.
  bool are_set(int r, const Step& step) const;
  // The rank learns what the writers of those flags knew.
  void observe(int r, const Step& step);
  void signal(int r, const Step& step);

 private:
  struct Signal {
    std::int64_t value = 0;
    Clock clock;
  };
  std::size_t word(int writer, int flag, std::int64_t chunk) const;

  World& world_;
  std::vector<std::vector<Signal>> words_;   // (writer * kFlags + flag) * slots + slot; all its values, oldest first
  std::vector<std::vector<Clock>> headers_;  // [call][writer], empty until signalled
};

}  // namespace collectives::verification
