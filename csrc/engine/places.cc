#include "engine/places.h"

#include <stdexcept>

namespace collectives {
namespace {

const Domain& checked(const Domain* domain) {
  if (domain == nullptr) {
    throw std::logic_error("a schedule uses mapped memory where no rank is mapped");
  }
  return *domain;
}

// chunk: the first one of a call that uses the row.
std::uintptr_t start_of(const Operand& operand, const Domain* domain, std::int64_t chunk, std::int64_t pitch) {
  switch (operand.region) {
    case Region::kInput:
    case Region::kOutput:
    case Region::kScratch:
      return 0;
    case Region::kBounce: {
      const std::int64_t at = chunk + operand.chunk;
      const int owner = operand.owner(at, checked(domain).limits().slots);
      return reinterpret_cast<std::uintptr_t>(domain->bounce(owner, static_cast<std::uint64_t>(at), pitch));
    }
    case Region::kInline:
      return reinterpret_cast<std::uintptr_t>(checked(domain).header(operand.member, 0).payload);
    case Region::kPeerInput:
    case Region::kPeerOutput:
      return reinterpret_cast<std::uintptr_t>(checked(domain).heap(operand.member));
  }
  return 0;
}

const std::atomic<std::uint64_t>& word_of(const FlagRef& flag, const Domain& domain, std::uint64_t slot) {
  return flag.flag == kHeaderFlag ? domain.header(flag.member, 0).word
                                  : domain.flag(flag.member, flag.flag, slot + flag.chunk).value;
}

}  // namespace

Places::Places(const Schedule& schedule, const Domain* domain) {
  const std::uint64_t slots = domain == nullptr ? 1 : static_cast<std::uint64_t>(domain->limits().slots);
  const std::uint64_t rows = schedule.swaps_buffers ? 2 * slots : slots;
  mask_ = rows - 1;
  // Rows point into both vectors, so they must not grow again. To move them keeps the addresses.
  operands_.reserve(rows * schedule.operands.size());
  flags_.reserve(rows * schedule.flags.size());
  for (std::uint64_t chunk = 0; chunk < rows; ++chunk) {
    rows_.push_back({operands_.data() + operands_.size(), flags_.data() + flags_.size()});
    for (const Operand& operand : schedule.operands) {
      const std::uintptr_t start = start_of(operand, domain, static_cast<std::int64_t>(chunk), schedule.slot_pitch);
      operands_.push_back(
          {start + static_cast<std::uintptr_t>(operand.offset), operand.stride, operand.region, operand.own});
    }
    for (const FlagRef& flag : schedule.flags) {
      flags_.push_back({reinterpret_cast<std::uintptr_t>(&word_of(flag, checked(domain), chunk)), flag.chunk,
                        flag.member, flag.flag == kHeaderFlag});
    }
  }
}

}  // namespace collectives
