// The addresses of the operands and the flags of a schedule, worked out once for all calls that run it.
//
// A call adds only the start of its arrays and the like (Bases), and picks a row by the slot of its first chunk. There
// is one row for each slot, or two where ranks swap bounce buffers, since every other call then uses the other buffer.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/domain.h"
#include "schedule/schedule.h"

namespace collectives {

// What to add to the `at` of a place, by its region.
using Bases = std::array<std::uintptr_t, kRegions>;

struct OperandPlace {
  std::uintptr_t at = 0;
  std::int64_t stride = 0;  // for each iteration of a loop
  Region region = Region::kInput;
  bool own = false;  // see Operand::own

  std::byte* address(const Bases& bases, std::int64_t iteration) const {
    return reinterpret_cast<std::byte*>(at + bases[static_cast<std::size_t>(region)] +
                                        static_cast<std::uintptr_t>(stride * iteration));
  }
};

struct FlagPlace {
  std::uintptr_t at = 0;
  std::int32_t chunk = 0;
  std::uint16_t member = 0;
  bool is_header = false;

  std::atomic<std::uint64_t>& word(const Bases& bases) const {
    const Region region = is_header ? Region::kInline : Region::kBounce;
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(at + bases[static_cast<std::size_t>(region)]);
  }
};

class Places {
 public:
  Places() = default;
  Places(Places&&) = default;  // no copies: rows point into what is beside them
  Places& operator=(Places&&) = default;
  // domain: nullptr where no rank is mapped.
  Places(const Schedule& schedule, const Domain* domain);

  // The operands and the flags, in the order in which the schedule lists them.
  struct Row {
    const OperandPlace* operands = nullptr;
    const FlagPlace* flags = nullptr;
  };
  // For a call whose first chunk is this, or for an iteration of a loop.
  const Row& row(std::uint64_t first_chunk) const { return rows_[first_chunk & mask_]; }

 private:
  std::uint64_t mask_ = 0;
  std::vector<Row> rows_;
  std::vector<OperandPlace> operands_;
  std::vector<FlagPlace> flags_;
};

}  // namespace collectives
