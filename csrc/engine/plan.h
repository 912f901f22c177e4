// A plan: a schedule bound to a communicator, and whatever else does not change from call to call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/signature.h"
#include "engine/places.h"
#include "reduce/reducer.h"
#include "schedule/algorithm.h"

namespace collectives {

// When a rank that has just published its header first looks for that of another; see Processor::looks_late.
enum class FirstLook : std::uint8_t {
  kAtOnce,
  kFenced,          // after earlier loads are done; as measured (docs/lab/cache-lines.md)
  kLateNear,        // after a pause where the cores share a cache, else at once; pays where a call is short
  kLate,            // after a pause
  kLateByDistance,  // after a pause, or two where the cores share no cache and this rank has no buffer to fill
};

// Where a rank prefetches for ownership the lines that the next call writes; see Processor::owns_next_lines.
enum class Owning : std::uint8_t {
  kNowhere,
  kFar,  // where the cores share no cache
  kEverywhere,
};

struct Plan {
  static constexpr std::uint32_t kSendRecvSteps = 4;  // send, receive, await, flush

  Signature signature;
  Problem problem;
  const Algorithm* algorithm = nullptr;
  std::uint8_t algorithm_number = 0;  // Signature::algorithm of calls; that of `signature` is 0 where it is chosen
  Schedule schedule;
  Places places;
  ReduceFunction reduce = nullptr;         // partial results
  ReduceFunction reduce_finish = nullptr;  // the last combination: divides for avg
  ReduceFunction copy = nullptr;           // copies bytes by a loop, for lengths at which memcpy is slower
  std::vector<int> peers;                  // ranks with which this one exchanges messages
  bool begins_with_sendrecv = false;       // a short Swap (transports/transport.h), received into scratch memory
  std::int64_t mapped_bytes = 0;           // moved through mapped memory by one run
  bool signals_header = false;             // a step of the schedule publishes the header line
  bool begins_at_once = false;             // Executor::make_ready() has nothing to do
  std::int64_t ahead_bytes = 0;            // of the own bounce buffer, prefetched for a later call during a wait
  std::size_t max_operands = 0;
  bool streams = false;           // copies into the output are written past the caches
  bool streams_in_place = false;  // also where the output is the input
  bool owns_copied = false;       // copies acquire ownership of the lines of sources that are marked Operand::own
  bool owns_reduced = false;      // so do reductions
  FirstLook first_look = FirstLook::kAtOnce;
  Owning owning = Owning::kNowhere;
  std::int64_t owned_bytes = 0;  // of the own bounce buffer, from the start of a slot: `owning` is for these, too
  bool by_string = false;        // bounce buffers are filled by a string instruction where memcpy would use none
  int element_shift = 0;         // log2 of the size of an element
};

// domain: nullptr where no rank is mapped.
std::unique_ptr<Plan> make_plan(const Signature& signature, const Problem& problem, const Algorithm& algorithm,
                                const Topology& topology, const Domain* domain);

// The number of the algorithm of that name, 0 for "auto". Throws ArgumentError where there is none, or where it cannot
// do this collective, op, dtype and root.
int algorithm_number(Problem problem, const std::string& name, const Topology& topology);

// Plans by signature and lengths of parts (Problem::counts, Problem::own). Direct-mapped: a look-up is one comparison,
// and a collision evicts.
class PlanCache {
 public:
  Plan* find(const Signature& signature, const std::vector<std::int64_t>& counts, const OwnParts* own) {
    Plan* plan = entries_[index(signature)].get();
    if (plan == nullptr || plan->signature != signature || plan->problem.counts != counts) {
      return nullptr;
    }
    const OwnParts* known = plan->problem.own.get();
    const bool same = known == own || (known != nullptr && own != nullptr && *known == *own);
    return same ? plan : nullptr;
  }
  // The evicted plan is handed back, since a collective in flight may still run it.
  std::shared_ptr<Plan> put(std::shared_ptr<Plan> plan) {
    auto& entry = entries_[index(plan->signature)];
    std::swap(entry, plan);
    return plan;
  }
  const std::shared_ptr<Plan>& entry(const Signature& signature) { return entries_[index(signature)]; }

 private:
  static constexpr std::size_t kEntries = 256;
  static std::size_t index(const Signature& s) {
    const std::uint64_t key =
        s.count_hash * 0x9e3779b97f4a7c15ULL + (std::uint64_t{s.collective} << 8 | s.op | std::uint64_t{s.dtype} << 16 |
                                                std::uint64_t{s.algorithm} << 24 | std::uint64_t{s.root} << 32) *
                                                   0xc2b2ae3d27d4eb4fULL;
    return key >> 56;
  }
  std::shared_ptr<Plan> entries_[kEntries];
};

}  // namespace collectives
