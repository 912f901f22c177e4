#include "verify/flags.h"

#include <algorithm>
#include <string>

#include "memory/domain.h"

namespace collectives::verification {
namespace {

// The first value of a flag that releases a wait for `chunk`, or the end.
template <typename Signals>
auto first_enough(const Signals& values, std::int64_t chunk) {
  return std::partition_point(values.begin(), values.end(), [&](const auto& v) { return v.value <= chunk; });
}

}  // namespace

Flags::Flags(World& world)
    : world_(world),
      words_(static_cast<std::size_t>(world.n * kFlags * world.options.limits.slots)),
      headers_(static_cast<std::size_t>(world.options.repeats), std::vector<Clock>(static_cast<std::size_t>(world.n))) {
}

std::size_t Flags::word(int writer, int flag, std::int64_t chunk) const {
  const std::int64_t slots = world_.options.limits.slots;
  return static_cast<std::size_t>((writer * kFlags + flag) * slots + chunk % slots);
}

bool Flags::are_set(int r, const Step& step) const {
  const Rank& rank = world_.rank(r);
  for (const FlagRef& flag : world_.schedule(r).waits(step)) {
    if (flag.flag == kHeaderFlag) {
      if (headers_[static_cast<std::size_t>(rank.call)][flag.member].empty()) {
        return false;
      }
      continue;
    }
    const std::int64_t chunk = rank.base + flag.chunk + rank.iteration;
    const std::vector<Signal>& values = words_[word(flag.member, flag.flag, chunk)];
    if (values.empty() || values.back().value <= chunk) {
      return false;
    }
  }
  return true;
}

void Flags::observe(int r, const Step& step) {
  Rank& rank = world_.rank(r);
  for (const FlagRef& flag : world_.schedule(r).waits(step)) {
    if (flag.flag == kHeaderFlag) {
      merge(rank.clock, headers_[static_cast<std::size_t>(rank.call)][flag.member]);
    } else {
      const std::int64_t chunk = rank.base + flag.chunk + rank.iteration;
      // By the first value that suffices: what the writer learned later, this rank may not know yet.
      merge(rank.clock, first_enough(words_[word(flag.member, flag.flag, chunk)], chunk)->clock);
    }
  }
}

void Flags::signal(int r, const Step& step) {
  Rank& rank = world_.rank(r);
  for (const FlagRef& flag : world_.schedule(r).signals(step)) {
    if (flag.flag == kHeaderFlag) {
      headers_[static_cast<std::size_t>(rank.call)][static_cast<std::size_t>(r)] = rank.clock;
    } else {
      const std::int64_t chunk = rank.base + flag.chunk + rank.iteration;
      std::vector<Signal>& values = words_[word(r, flag.flag, chunk)];
      if (!values.empty() && values.back().value >= chunk + 1) {
        throw Violation{"signals flag " + std::to_string(flag.flag) + " of chunk " +
                        std::to_string(flag.chunk + rank.iteration) + " twice, or after a later chunk of its slot"};
      }
      values.push_back({chunk + 1, rank.clock});
    }
  }
  if (step.signals.count > 0) {
    world_.release(r);
  }
}

}  // namespace collectives::verification
