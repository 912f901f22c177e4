#include "verify/regions.h"

#include <algorithm>
#include <string>

#include "memory/domain.h"

namespace collectives::verification {

Regions::Regions(World& world) : world_(world) {
  const VerifyOptions& options = world.options;
  for (int r = 0; r < world.n; ++r) {
    const std::string owner = " of rank " + std::to_string(r);
    Rank& rank = world.rank(r);
    const std::int64_t in_bytes =
        options.in_place ? std::max(world.user_bytes(r, 0), world.user_bytes(r, 1)) : world.user_bytes(r, 0);
    rank.user[0] = Shadow((options.in_place ? "the buffer" : "the input") + owner, in_bytes, &world.backgrounds);
    rank.user[1] = Shadow("the output" + owner, world.user_bytes(r, 1), &world.backgrounds);
    rank.user[0].read_only = options.in_place ? nullptr : "writes the input of a call that is not in place";
    if (!world.has_output(r)) {
      rank.user[options.in_place ? 0 : 1].read_only = "writes the output of a rank that gets no result";
    }
    for (std::int64_t slot = 0; slot < options.limits.slots; ++slot) {
      slots_.emplace_back("slot " + std::to_string(slot) + owner, options.limits.slot_bytes, &world.backgrounds);
    }
    for (int line = 0; line < kHeaderLines; ++line) {
      header_lines_.emplace_back("header line " + std::to_string(line) + owner, options.limits.inline_bytes,
                                 &world.backgrounds);
    }
  }
}

Place Regions::place(int r, const Operand& operand) {
  Rank& rank = world_.rank(r);
  const std::int64_t offset = operand.offset + rank.iteration * operand.stride;
  const auto user = [&](int owner, int which) {
    const std::int64_t begin = world_.options.in_place ? world_.in_place_offset(owner, which) : 0;
    return Place{&world_.rank(owner).user[world_.options.in_place ? 0 : which], begin + offset};
  };
  switch (operand.region) {
    case Region::kInput:
      return user(r, 0);
    case Region::kOutput:
      return user(r, 1);
    case Region::kPeerInput:
      return user(operand.member, 0);
    case Region::kPeerOutput:
      return user(operand.member, 1);
    case Region::kScratch:
      return {&rank.scratch, offset};
    case Region::kBounce: {
      const std::int64_t slots = world_.options.limits.slots;
      const std::int64_t chunk = rank.base + operand.chunk + rank.iteration;
      return {&slots_[static_cast<std::size_t>(operand.owner(chunk, slots) * slots + chunk % slots)], offset};
    }
    case Region::kInline:
      break;
  }
  return {&header_lines_[static_cast<std::size_t>(operand.member * kHeaderLines + rank.call % kHeaderLines)], offset};
}

Place Regions::target(int r, const Operand& operand) {
  const Place to = place(r, operand);
  if (to.memory->read_only != nullptr) {
    throw Violation{to.memory->read_only};
  }
  return to;
}

Data Regions::read_operand(int r, const Operand& operand, std::int64_t bytes, int background) {
  const Place from = place(r, operand);
  const bool count = world_.rank(r).call == 0;
  std::vector<std::int64_t> moved(count ? static_cast<std::size_t>(world_.n) : 0, 0);
  Data data = from.memory->read(world_.actor(r), from.offset, bytes, background, count ? &moved : nullptr);
  for (std::size_t w = 0; w < moved.size(); ++w) {
    world_.verdict.link_bytes[w][static_cast<std::size_t>(r)] += moved[w];
  }
  if (operand.own) {
    // Prefetching a line for ownership leaves its values, but races as a write does.
    from.memory->write(world_.actor(r), from.offset, data);
  }
  return data;
}

int Regions::begin_background(int r, int receiver) {
  const Actor now = world_.actor(r);
  world_.backgrounds.push_back(
      {{r, now.call, now.step, (*now.clock)[static_cast<std::size_t>(r)]}, kNever, receiver, kNever});
  return static_cast<int>(world_.backgrounds.size()) - 1;
}

void Regions::new_scratch(int r) {
  world_.rank(r).scratch =
      Shadow("the scratch memory of rank " + std::to_string(r), world_.schedule(r).scratch_bytes, &world_.backgrounds);
}

void Regions::define_user_memory(int r) {
  Rank& rank = world_.rank(r);
  const Actor user{r, rank.call, -1, &rank.clock};
  const bool contributes = world_.problem.collective != Collective::kBroadcast || r == world_.problem.root;
  for (const int which : {0, 1}) {
    if (rank.user[which].bytes() > 0) {
      rank.user[which].write(user, 0, {{0, rank.user[which].bytes(), kUndefined, 0, 0}});
    }
  }
  if (contributes && world_.user_bytes(r, 0) > 0) {
    const std::int64_t offset = world_.options.in_place ? world_.in_place_offset(r, 0) : 0;
    rank.user[0].write(user, offset, {{0, world_.user_bytes(r, 0), world_.values.leaf(r), 0, 0}});
  }
}

// Bytes that a peer wrote into the output directly cross a link now.
Data Regions::read_output(int r) {
  Rank& rank = world_.rank(r);
  const Actor user{r, rank.call, -1, &rank.clock};
  const bool in_place = world_.options.in_place;
  std::vector<std::int64_t> moved(static_cast<std::size_t>(world_.n), 0);
  Data data = rank.user[in_place ? 0 : 1].read(user, in_place ? world_.in_place_offset(r, 1) : 0,
                                               world_.user_bytes(r, 1), -1, &moved);
  for (std::size_t q = 0; rank.call == 0 && q < moved.size(); ++q) {
    world_.verdict.link_bytes[q][static_cast<std::size_t>(r)] += moved[q];
  }
  return data;
}

}  // namespace collectives::verification
