#include "runtime/places.h"

#include <stdexcept>

namespace collectives {
namespace {

const Domain& checked(const Domain* domain) {
  if (domain == nullptr) {
    throw std::logic_error("a schedule uses mapped memory where no rank is mapped");
  }
  return *domain;
}

std::uintptr_t start_of(const Operand& operand, const Domain* domain, std::uint64_t slot, std::int64_t pitch) {
  switch (operand.region) {
    case Region::kInput:
    case Region::kOutput:
    case Region::kScratch:
      return 0;
    case Region::kBox:
      return reinterpret_cast<std::uintptr_t>(checked(domain).box(operand.member, slot + operand.chunk, pitch));
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

Places::Places(const Schedule& schedule, const Domain* domain)
    : slot_mask_(domain != nullptr ? domain->limits().slots - 1 : 0) {
  // Rows point into both, also where these are moved.
  operands_.reserve((slot_mask_ + 1) * schedule.operands.size());
  flags_.reserve((slot_mask_ + 1) * schedule.flags.size());
  for (std::uint64_t slot = 0; slot <= slot_mask_; ++slot) {
    rows_.push_back({operands_.data() + operands_.size(), flags_.data() + flags_.size()});
    for (const Operand& operand : schedule.operands) {
      operands_.push_back(
          {start_of(operand, domain, slot, schedule.slot_pitch) + static_cast<std::uintptr_t>(operand.offset),
           operand.stride, operand.region, operand.take});
    }
    for (const FlagRef& flag : schedule.flags) {
      flags_.push_back({reinterpret_cast<std::uintptr_t>(&word_of(flag, checked(domain), slot)), flag.chunk,
                        flag.member, flag.flag == kHeaderFlag});
    }
  }
}

}  // namespace collectives
