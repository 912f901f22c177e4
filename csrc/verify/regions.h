// The memory of all ranks that steps name: the user's, slots, header lines, scratch memory.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"
#include "verify/world.h"

namespace collectives::verification {

struct Place {
  Shadow* memory = nullptr;
  std::int64_t offset = 0;
};

inline bool overlap(std::int64_t a, std::int64_t b, std::int64_t bytes) { return a < b + bytes && b < a + bytes; }

class Regions {
 public:
  explicit Regions(World& world);

  // Where the operand of the step lies that the rank is in.
  Place place(int r, const Operand& operand);
  // The same, to be written: throws Violation where no schedule may write.
  Place target(int r, const Operand& operand);
  // Reads an operand. `background` as in Shadow::read(). In the first call, whose traffic is counted, also adds up what
  // crosses links.
  Data read_operand(int r, const Operand& operand, std::int64_t bytes, int background);
  // A new access of the rank that goes on in the background; `receiver`: see Background, -1 where there is none.
  int begin_background(int r, int receiver);

  // A call begins: the scratch memory is fresh.
  void new_scratch(int r);
  // The user's program writes its buffers before every call, and may do so again right after.
  void define_user_memory(int r);
  // The user's program reads the result.
  Data read_output(int r);

 private:
  World& world_;
  std::vector<Shadow> slots_;         // rank * slots + slot
  std::vector<Shadow> header_lines_;  // rank * kHeaderLines + call % kHeaderLines
};

}  // namespace collectives::verification
