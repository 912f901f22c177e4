// What a plan says of lines that other cores read: of which of them a rank acquires ownership before it writes them
// again, and which its readers write back for it. Of every algorithm, for data that pass through bounce buffers in one
// piece and for more.

#include "engine/plan.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cpu/processor.h"
#include "local_world.h"

namespace {

using namespace collectives;

int g_failures = 0;

void check(bool good, const std::string& what) {
  if (!good) {
    std::fprintf(stderr, "FAILED: %s\n", what.c_str());
    ++g_failures;
  }
}

Problem problem_of(Collective collective, std::int64_t elements, int size) {
  Problem problem;
  problem.collective = collective;
  problem.count = collective == Collective::kBarrier ? 0 : elements;
  if (is_vector(collective)) {
    problem.counts.assign(collective == Collective::kAllToAll ? size * size : size, elements);
    problem.count = std::accumulate(problem.counts.begin(), problem.counts.end(), std::int64_t{0});
  }
  return problem;
}

// Where a rank does not write back what it has copied from a bounce buffer, the owner of that buffer prefetches all of
// it.
void check_sources(const std::vector<std::unique_ptr<Plan>>& plans, const std::string& name) {
  for (const auto& plan : plans) {
    for (const Step& step : plan->schedule.steps) {
      if (step.kind != StepKind::kCopy || plan->owns_copied == processor().owns_read_lines ||
          plan->schedule.swaps_buffers) {
        continue;
      }
      for (const Operand& source : plan->schedule.sources(step)) {
        const bool fetched = source.offset + step.length <= plans[source.member]->owned_bytes;
        check(!source.own || fetched, name + ": " + std::to_string(source.offset + step.length) +
                                          " bytes are not written back, and their owner prefetches only " +
                                          std::to_string(plans[source.member]->owned_bytes));
      }
    }
  }
}

// Of two ranks that swap bounce buffers, each fills what it has read in the round of slots before: those lines are in
// its cache.
void check_sendrecv(const Plan& plan, const Limits& limits, const std::string& name) {
  const auto& operands = plan.schedule.operands;
  check(plan.owned_bytes == 0 && plan.ahead_bytes == 0, name + ": swapped bounce buffers are prefetched");
  check(!plan.owns_copied, name + ": ownership is acquired of lines that this rank writes next");
  int pairs = 0;
  for (std::size_t filled = 0; filled < operands.size(); ++filled) {
    for (std::size_t read = 0; read < operands.size(); ++read) {
      // Sources are marked.
      const bool matches = operands[filled].swaps_buffers() && !operands[filled].own &&
                           operands[read].swaps_buffers() && operands[read].own &&
                           operands[read].chunk == operands[filled].chunk;
      if (!matches) {
        continue;
      }
      ++pairs;
      for (std::uint64_t chunk = 0; chunk < 4 * static_cast<std::uint64_t>(limits.slots); ++chunk) {
        const OperandPlace& before = plan.places.row(chunk).operands[read];
        const OperandPlace& then = plan.places.row(chunk + limits.slots).operands[filled];
        check(before.at == then.at, name + ": what is filled is not what was read");
      }
    }
  }
  check(pairs > 0, name + ": bounce buffers are swapped one way only");
}

// Which bounce buffers are to be swapped: those of two ranks that give each other as much.
bool to_be_swapped(const Problem& problem, const Algorithm& algorithm, const Schedule& schedule, int size) {
  const bool bounces =
      std::ranges::any_of(schedule.operands, [](const Operand& o) { return o.region == Region::kBounce; });
  return bounces && size == 2 && algorithm.name == "one_shot" && !has_root(problem.collective) &&
         !is_prefix(problem.collective) && problem.collective != Collective::kBarrier;
}

void check_plans(const Algorithm& algorithm, const LocalWorld& world, bool crowded, std::int64_t elements) {
  const int size = static_cast<int>(world.ranks.size());
  const Problem problem = problem_of(algorithm.collective, elements, size);
  const std::string name = std::string(collectives::name(algorithm.collective)) + " by " + std::string(algorithm.name) +
                           " of " + std::to_string(elements) + " elements, " + std::to_string(size) +
                           (crowded ? " crowded" : "") + " ranks";
  std::vector<std::unique_ptr<Plan>> plans;
  for (int r = 0; r < size; ++r) {
    const Communicator& rank = *world.ranks[r];
    if (!algorithm.unsupported(problem, rank.topology()).empty()) {
      return;
    }
    plans.push_back(make_plan(Signature(), problem, algorithm, rank.topology(), rank.domain()));
    const Plan& plan = *plans.back();
    const bool owns = plan.owning != Owning::kNowhere;
    check(owns || plan.owned_bytes == 0, name + ": lines of a bounce buffer are prefetched, but not the header's");
    check(!owns || !crowded, name + ": lines are prefetched for a rank that has to wait for its core first");
    // LookTactics::own_next_lines() takes the slot of the next chunk for that of the next call, and for as long as a
    // slot.
    check(!owns || (plan.schedule.chunks <= 1 && plan.schedule.slot_pitch == 0),
          name + ": lines are prefetched that the next call does not write");
    check(plan.owned_bytes <= rank.domain()->limits().slot_bytes, name + ": more is prefetched than a slot has");
    const Schedule& schedule = plan.schedule;
    const bool prepared = schedule.uses_links || schedule.chooses || schedule.scratch_bytes > 0 || !plan.signals_header;
    check(plan.begins_at_once != prepared, name + ": what is to be prepared is not, or nothing is");
    check(!owns || plan.ahead_bytes == 0, name + ": lines are fetched twice");
    check(schedule.swaps_buffers == to_be_swapped(problem, algorithm, schedule, size),
          name + ": swaps bounce buffers, or does not");
    if (schedule.swaps_buffers) {
      check_sendrecv(plan, rank.domain()->limits(), name);
    }
  }
  check_sources(plans, name);
}

}  // namespace

int main() {
  Limits small;  // several chunks of what otherwise is one
  small.slot_bytes = 128;
  for (const Limits& limits : {Limits(), small}) {
    for (const int size : {2, 3}) {
      for (const bool crowded : {false, true}) {
        const LocalWorld world(size, limits, crowded);
        for (const Algorithm& algorithm : algorithms()) {
          // Of 4 bytes: in the header line, in one and in a few lines of a bounce buffer, and in more than one slot.
          for (const std::int64_t elements : {2, 10, 16, 32, 64, 256, 512, 4096, 1 << 20}) {
            check_plans(algorithm, world, crowded, elements);
          }
        }
      }
    }
  }
  if (g_failures > 0) {
    std::fprintf(stderr, "%d checks failed\n", g_failures);
    return 1;
  }
  return 0;
}
